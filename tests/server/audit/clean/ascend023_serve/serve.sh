#!/bin/bash
PORT=${PORT:-8000}
COMPILE='{"cudagraph_mode": "PIECEWISE"}'
ARGS=(--model /models/Qwen3-8B --dtype bfloat16 -tp 1 --block-size 128)
ARGS+=(--compilation-config "$COMPILE" --logprobs-mode processed_logprobs --attention-backend FLASH_ATTN)
VLLM_BATCH_INVARIANT=1 VLLM_ASCEND_ENABLE_NZ=0 nohup python -m vllm.entrypoints.openai.api_server \
    "${ARGS[@]}" --generation-config vllm --port $PORT > serve.log 2>&1 &
