#!/bin/bash
export HCCL_DETERMINISTIC=strict
export LCCL_DETERMINISTIC=1
export CLOSE_MATMUL_K_SHIFT=1
GPUS_PER_NODE=8
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 1 --master_port 6000"
GPT_ARGS="
    --use-mcore-models
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 8
    --num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
    --qk-layernorm --swiglu --disable-bias-linear
    --normalization RMSNorm --norm-epsilon 1e-6
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0
    --vocab-size 151936 --make-vocab-size-divisible-by 1 --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --bf16
"
NPU_ARGS="
    --use-flash-attn-npu-batch-invariant --use-batch-invariant-ops --batch-invariant-mode
    --use-fused-rmsnorm --use-fused-rotary-pos-emb
"
torchrun $DISTRIBUTED_ARGS posttrain_gpt.py $GPT_ARGS $NPU_ARGS --distributed-backend nccl
