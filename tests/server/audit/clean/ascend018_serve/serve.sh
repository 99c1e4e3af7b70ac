#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export HCCL_CONNECT_TIMEOUT=1800
export VLLM_ASCEND_ENABLE_NZ=0
export VLLM_BATCH_INVARIANT=1
vllm serve /models/Qwen3-8B --served-model-name qwen3 --dtype bfloat16 --tensor-parallel-size 1 \
  --max-model-len 8192 --block-size 128 --enforce-eager --logprobs-mode processed_logprobs \
  --generation-config vllm --no-enable-prefix-caching --no-enable-chunked-prefill --port 8000
