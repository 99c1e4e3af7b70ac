#!/usr/bin/env bash
# A launch with faults, for `logdiff audit examples/audit`.
set -xeuo pipefail

export VLLM_BATCH_INVARIANT=1
export HCCL_CONNECT_TIMEOUT=3600
export HCCL_DETERMINSTIC=strict
export VLLM_ASCEND_ENABLE_NZ=1

MODEL_PATH=${MODEL_PATH:-"/models/Qwen3-30B-A3B"}
train_tp=2
gen_tp=${GEN_TP:-4}
MODE=${MODE:-fast}

ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=${gen_tp}
    actor_rollout_ref.rollout.temperature=0.8
    actor_rollout_ref.rollout.top_p=0.95
    actor_rollout_ref.rollout.enforce_eager=True
    +actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend=FLASH_ATTN
)
if [ "$MODE" = "fast" ]; then
    ROLLOUT+=(actor_rollout_ref.rollout.enable_prefix_caching=True)
fi

python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml \
    actor_rollout_ref.model.path="${MODEL_PATH}" \
    actor_rollout_ref.actor.strategy=megatron \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=${train_tp} \
    actor_rollout_ref.actor.megatron.use_mbridge=True \
    +actor_rollout_ref.actor.megatron.override_transformer_config.use_flash_attn_npu_batch_invariant=True \
    trainer.device=npu "${ROLLOUT[@]}" "$@"
