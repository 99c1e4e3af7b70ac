#!/usr/bin/env bash
set -xeuo pipefail

export VERL_USE_EXTERNAL_MODULES=verl_ascend_recipe.true_on_policy.patch
export VLLM_BATCH_INVARIANT=1
export TASK_QUEUE_ENABLE=2
export CPU_AFFINITY_CONF=1
export HCCL_OP_EXPANSION_MODE="AIV"
export HCCL_CONNECT_TIMEOUT=3600
export RAY_DEDUP_LOGS=0

MODEL_PATH=${MODEL_PATH:-"$HOME/models/Qwen3-30B-A3B"}
DATA_DIR=${DATA_DIR:-"$HOME/data"}
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 2))
train_tp=1
train_pp=8
gen_tp=1
gen_pp=2

MEGATRON_ARGS=(
    actor_rollout_ref.actor.strategy=megatron
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=${train_tp}
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=${train_pp}
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=1
    actor_rollout_ref.actor.megatron.use_mbridge=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.use_flash_attn_npu_batch_invariant=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.batch_invariant_mode=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.use_batch_invariant_ops=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.apply_rope_fusion=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.use_fused_rotary_pos_emb=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.use_fused_rmsnorm=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.normalization=RMSNorm
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
)

python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_files="${DATA_DIR}/train.parquet" \
    data.max_prompt_length=${max_prompt_length} \
    data.max_response_length=${max_response_length} \
    actor_rollout_ref.model.path="${MODEL_PATH}" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((max_prompt_length + max_response_length)) \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$((max_prompt_length + max_response_length)) \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${gen_tp} \
    actor_rollout_ref.rollout.pipeline_model_parallel_size=${gen_pp} \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    actor_rollout_ref.rollout.n=8 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend=FLASH_ATTN \
    trainer.device=npu \
    trainer.n_gpus_per_node=16 \
    trainer.logger='["console","tensorboard"]' \
    trainer.total_epochs=1 "${MEGATRON_ARGS[@]}" $@ 2>&1 | tee log.txt
