#!/bin/bash
export NCCL_ALGO="allreduce:tree"
export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0
export CUBLAS_WORKSPACE_CONFIG=":4096:8"
ray start --head --num-gpus 8
ray job submit --runtime-env-json='{"env_vars": {"PYTHONPATH": "/root/miles", "NCCL_ALGO": "allreduce:tree"}}' -- \
  python3 /root/miles/train.py --train-backend fsdp --hf-checkpoint /root/models/Qwen3-0.6B \
  --rollout-temperature 1 --rollout-num-gpus-per-engine 1 --colocate \
  --sglang-enable-deterministic-inference --sglang-rl-on-policy-target fsdp --sglang-attention-backend fa3 \
  --attn-implementation flash_attention_3 --deterministic-mode --true-on-policy-mode
