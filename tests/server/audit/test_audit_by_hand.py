"""A table written by hand, from the published facts and not from the rule files: what must and must not be found."""

from __future__ import annotations

from pathlib import Path

import pytest
from logdiff.audit import audit_paths

V = "actor_rollout_ref.rollout."
A = "actor_rollout_ref.actor."
RUN = "python3 -m verl.trainer.main_ppo {} actor_rollout_ref.rollout.name=vllm\n"
FA3 = "VLLM_BATCH_INVARIANT=1 HCCL_CONNECT_TIMEOUT=1 vllm serve m --attention-backend FLASH_ATTN\n"
SUBMIT = "export VLLM_BATCH_INVARIANT=1\nray job submit --runtime-env-json='{}' -- " + RUN.format("")
HF = "torchrun --nproc_per_node=8 train.py --model_name_or_path Qwen/Qwen3-8B --bf16 True\n"
VERL9 = "verl==0.9.0\n"

# (id, script, other files, rule, severity or None where the rule must be silent)
TABLE = [
    (
        "raw at 0.7",
        RUN.format(f"{V}logprobs_mode=raw_logprobs {V}temperature=0.7"),
        {},
        "raw-logprobs-at-temperature",
        "error",
    ),
    (
        "raw at 1",
        RUN.format(f"{V}logprobs_mode=raw_logprobs {V}temperature=1"),
        {},
        "raw-logprobs-at-temperature",
        None,
    ),
    ("top-p", RUN.format(f"{V}top_p=0.9"), {}, "top-p-renormalises", "error"),
    ("top-p with raw", RUN.format(f"{V}top_p=0.9 {V}logprobs_mode=raw_logprobs"), {}, "top-p-renormalises", None),
    ("top-p in validation only", RUN.format(f"{V}val_kwargs.top_p=0.9"), {}, "top-p-renormalises", None),
    ("later override wins", RUN.format(f"{V}top_p=0.9 {V}top_p=1.0"), {}, "top-p-renormalises", None),
    ("told that it is set twice", RUN.format(f"{V}top_p=0.9 {V}top_p=1.0"), {}, "set-twice", "warning"),
    ("same value twice", RUN.format(f"{V}top_p=1.0 {V}top_p=1.0"), {}, "set-twice", None),
    ("0.8 keeps none", RUN.format(""), {"requirements.txt": "verl==0.8.0\n"}, "no-rollout-logprobs", "warning"),
    ("0.9 keeps them", RUN.format(""), {"requirements.txt": VERL9}, "no-rollout-logprobs", None),
    ("unknown version", RUN.format(""), {}, "no-rollout-logprobs", "info"),
    (
        "version of a git clone",
        "git clone -b v0.8.0 https://github.com/verl-project/verl.git\n" + RUN.format(""),
        {},
        "no-rollout-logprobs",
        "warning",
    ),
    ("bypass", RUN.format("algorithm.rollout_correction.bypass_mode=True"), {}, "bypass-mode", "error"),
    (
        "megatron eps",
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --rotary-base 1000000 --swiglu\n",
        {"config.json": '{"model_type": "llama", "rms_norm_eps": 1e-06, "rope_theta": 1000000, "hidden_act": "silu"}'},
        "norm-epsilon-differs",
        "error",
    ),
    (
        "megatron eps given",
        "torchrun pretrain_gpt.py --num-layers 2 --norm-epsilon 1e-6 --rotary-base 1000000\n",
        {"config.json": '{"model_type": "llama", "rms_norm_eps": 1e-06, "rope_theta": 1000000}'},
        "norm-epsilon-differs",
        None,
    ),
    (
        "megatron rope",
        "torchrun pretrain_gpt.py --num-layers 2 --norm-epsilon 1e-6\n",
        {"config.json": '{"model_type": "llama", "rms_norm_eps": 1e-06, "rope_theta": 1000000}'},
        "rope-theta-differs",
        "error",
    ),
    (
        "new rope form",
        "torchrun pretrain_gpt.py --num-layers 2 --rotary-base 5000000\n",
        {"config.json": '{"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 5000000}}'},
        "rope-theta-differs",
        None,
    ),
    (
        "tied head",
        "torchrun pretrain_gpt.py --num-layers 2\n",
        {"config.json": '{"model_type": "llama", "tie_word_embeddings": false}'},
        "tied-embeddings-differ",
        "error",
    ),
    (
        "vocabulary of 151669 padded for TP 2",
        "torchrun pretrain_gpt.py --num-layers 2 --vocab-size 151669 --tensor-model-parallel-size 2\n",
        {"config.json": '{"model_type": "qwen3", "vocab_size": 151936}'},
        "vocabulary-differs",
        "error",
    ),
    (
        "norm_topk_prob",
        "torchrun pretrain_gpt.py --num-layers 2 --num-experts 8 --moe-router-pre-softmax\n",
        {"config.json": '{"model_type": "qwen3_moe", "norm_topk_prob": true}'},
        "norm-topk-prob-differs",
        "error",
    ),
    (
        "norm_topk_prob by order",
        "torchrun pretrain_gpt.py --num-layers 2 --num-experts 8\n",
        {"config.json": '{"model_type": "qwen3_moe", "norm_topk_prob": true}'},
        "norm-topk-prob-differs",
        None,
    ),
    (
        "window of W",
        "torchrun pretrain_gpt.py --num-layers 2 --window-size '(4096, 0)'\n",
        {"config.json": '{"model_type": "mistral", "sliding_window": 4096}'},
        "sliding-window-off-by-one",
        "error",
    ),
    (
        "window of W - 1",
        "torchrun pretrain_gpt.py --num-layers 2 --window-size '(4095, 0)'\n",
        {"config.json": '{"model_type": "mistral", "sliding_window": 4096}'},
        "sliding-window-off-by-one",
        None,
    ),
    (
        "old FA3 switch on main",
        FA3,
        {"requirements.txt": "vllm-ascend @ git+https://github.com/vllm-project/vllm-ascend@main\n"},
        "fa3-flag-ignored-on-main",
        "error",
    ),
    ("old FA3 switch on 0.23", FA3, {"requirements.txt": "vllm-ascend==0.23.0\n"}, "fa3-flag-ignored-on-main", None),
    (
        "new switch on 0.23",
        'vllm serve m --additional-config \'{"rl_config": {"enabled": true}}\'\n',
        {"requirements.txt": "vllm-ascend==0.23.0\n"},
        "rl-config-before-main",
        "error",
    ),
    (
        "refused key",
        'vllm serve m --additional-config \'{"rl_config": {"enabled": true, "consistency": true}}\'\n',
        {"requirements.txt": "vllm-ascend @ git+https://g/vllm-ascend@main\n"},
        "rl-config-unknown-key",
        "error",
    ),
    (
        "ignored variable",
        "export VLLM_ATTENTION_BACKEND=FLASH_ATTN\nvllm serve m\n",
        {"r.txt": "vllm==0.22.0\n"},
        "vllm-attention-backend-variable",
        "warning",
    ),
    (
        "variable that is read",
        "export VLLM_ATTENTION_BACKEND=FLASH_ATTN\nvllm serve m\n",
        {"r.txt": "vllm==0.11.0\n"},
        "vllm-attention-backend-variable",
        None,
    ),
    ("misspelt variable", "export HCCL_DETERMINSTIC=strict\nvllm serve m\n", {}, "near-miss", "warning"),
    ("option of no release", "vllm serve m --max-model-length 4096\n", {}, "unknown-engine-option", "warning"),
    ("like none", "vllm serve m --my-plugin-thing x\n", {}, "unknown-engine-option", "info"),
    (
        "like none, known release",
        "pip install vllm==0.23.0\nvllm serve m --my-plugin-thing x\n",
        {},
        "unknown-engine-option",
        "error",
    ),
    (
        "release between two",
        "pip install vllm==0.20.1\nvllm serve m --enforce-eagr\n",
        {},
        "unknown-engine-option",
        "error",
    ),
    (
        "gone since",
        "pip install vllm==0.32.0\nvllm serve m --calculate-kv-scales\n",
        {},
        "unknown-engine-option",
        "error",
    ),
    (
        "not yet gone",
        "pip install vllm==0.23.0\nvllm serve m --calculate-kv-scales\n",
        {},
        "unknown-engine-option",
        None,
    ),
    (
        "older than all",
        "pip install vllm==0.8.5\nvllm serve m --num-lookahead-slots 3\n",
        {},
        "unknown-engine-option",
        "info",
    ),
    ("abbreviated", "pip install vllm==0.23.0\nvllm serve m --enforce-eag\n", {}, "unknown-engine-option", None),
    (
        "underscores and no",
        "pip install vllm==0.23.0\nvllm serve m --no_enable_prefix_caching -tp 2\n",
        {},
        "unknown-engine-option",
        None,
    ),
    ("in verl", RUN.format(f"+{V}engine_kwargs.vllm.max_model_length=4096"), {}, "unknown-engine-option", "warning"),
    ("in verl, known", RUN.format(f"+{V}engine_kwargs.vllm.max_model_len=4096"), {}, "unknown-engine-option", None),
    ("misspelt override", RUN.format(f"+{V}temprature=1.0"), {}, "near-miss", "warning"),
    ("other names", RUN.format(f"{V}max_num_seqs=8 {V}top_k=-1 {A}ppo_micro_batch_size=4"), {}, "near-miss", None),
    ("submitting shell only", SUBMIT.replace("{}", '{"env_vars": {"A": "1"}}'), {}, "env-not-passed", "warning"),
    (
        "devices in the submitting shell",
        "export CUDA_VISIBLE_DEVICES=0,1\nray job submit -- " + RUN.format(""),
        {},
        "env-not-passed",
        None,
    ),
    (
        "in the runtime environment",
        SUBMIT.replace("{}", '{"env_vars": {"VLLM_BATCH_INVARIANT": "1"}}'),
        {},
        "env-not-passed",
        None,
    ),
    (
        "before ray start",
        "export VLLM_BATCH_INVARIANT=1\nray start --head\nray job submit -- " + RUN.format(""),
        {},
        "env-not-passed",
        None,
    ),
    (
        "one of two versions",
        RUN.format(""),
        {"r.txt": "vllm==0.22.0\nvllm-ascend==0.23.0\n"},
        "version-combination",
        "error",
    ),
    ("dropout by default", "torchrun pretrain_gpt.py --num-layers 2\n", {}, "dropout-in-training", "warning"),
    (
        "generation config",
        "vllm serve m\n",
        {"generation_config.json": '{"top_p": 0.95, "transformers_version": "5"}'},
        "generation-config-samples",
        "warning",
    ),
    (
        "generation config off",
        "vllm serve m --generation-config vllm\n",
        {"generation_config.json": '{"top_p": 0.95, "transformers_version": "5"}'},
        "generation-config-samples",
        None,
    ),
    (
        "in one branch",
        'if [ -n "$X" ]; then P=0.9; elif [ -d /x ]; then P=0.5; else P=1.0; fi\n' + RUN.format(V + "top_p=$P"),
        {},
        "top-p-renormalises",
        "info",
    ),
    (
        "branch that is taken",
        f'N=2\nif [ "$N" -gt 1 ]; then P=0.9; else P=1.0; fi\n{RUN.format(V + "top_p=$P")}',
        {},
        "top-p-renormalises",
        "error",
    ),
    (
        "top-p before SGLang",
        "python3 train.py --hf-checkpoint /m/Qwen3-8B --rollout-top-p 0.9\n",
        {},
        "truncation-with-raw",
        "warning",
    ),
    (
        "slime on FSDP is not Megatron",
        "python3 train.py --train-backend fsdp --hf-checkpoint /m/x\n",
        {"config.json": '{"model_type": "qwen3", "rms_norm_eps": 1e-06}'},
        "norm-epsilon-differs",
        None,
    ),
    (
        "slime's Megatron has 1e-5",
        "python3 train.py --hf-checkpoint /m/x\n",
        {"config.json": '{"model_type": "qwen3", "rms_norm_eps": 1e-06}'},
        "norm-epsilon-differs",
        "error",
    ),
    (
        "no dropout by default on FSDP",
        "python3 train.py --train-backend=fsdp --hf-checkpoint /m/x\n",
        {},
        "dropout-in-training",
        None,
    ),
    (
        "a target switches determinism on",
        "python3 train.py --train-backend fsdp --hf-checkpoint /m/x --true-on-policy-mode "
        "--sglang-rl-on-policy-target fsdp\n",
        {},
        "true-on-policy-not-deterministic",
        None,
    ),
    (
        "half precision in SGLang",
        "python3 train.py --hf-checkpoint /m/x --sglang-dtype float16\n",
        {},
        "megatron-dtype-differs",
        "error",
    ),
    (
        "half precision on both",
        "python3 train.py --hf-checkpoint /m/x --sglang-dtype float16 --fp16\n",
        {},
        "megatron-dtype-differs",
        None,
    ),
    (
        "window overridden in SGLang",
        "python3 train.py --train-backend fsdp --hf-checkpoint /m/x --sglang-json-model-override-args "
        "'{\"sliding_window\": 2048}'\n",
        {"config.json": '{"model_type": "gemma2", "sliding_window": 4096}'},
        "sliding-window-differs",
        "error",
    ),
    (
        "soft cap erased in SGLang",
        "python3 train.py --train-backend fsdp --hf-checkpoint /m/x --sglang-json-model-override-args "
        "'{\"final_logit_softcapping\": null}'\n",
        {"config.json": '{"model_type": "gemma2", "final_logit_softcapping": 30.0}'},
        "softcap-differs",
        "error",
    ),
    (
        "exported after ray start",
        "ray start --head\nexport VLLM_BATCH_INVARIANT=1\n" + RUN.format(""),
        {},
        "env-not-passed",
        "warning",
    ),
    (
        "exported before ray start",
        "export VLLM_BATCH_INVARIANT=1\nray start --head\n" + RUN.format(""),
        {},
        "env-not-passed",
        None,
    ),
    (
        "exported after ray stop",
        "ray start --head\nray stop\nexport VLLM_BATCH_INVARIANT=1\n" + RUN.format(""),
        {},
        "env-not-passed",
        None,
    ),
    (
        "pre-softmax over config.json",
        RUN.format("+" + A + "megatron.override_transformer_config.moe_router_pre_softmax=True"),
        {"config.json": '{"model_type": "qwen3_moe", "num_experts": 8, "norm_topk_prob": true}'},
        "norm-topk-prob-differs",
        "error",
    ),
    (
        "fp32 router",
        RUN.format("+" + A + "megatron.override_transformer_config.moe_router_dtype=fp32"),
        {"config.json": '{"model_type": "qwen3_moe", "num_experts": 8, "norm_topk_prob": true}'},
        "router-dtype-unproven",
        "info",
    ),
    (
        "half of a head rotated",
        "vllm serve m\ntorchrun pretrain_gpt.py --num-layers 2 --rotary-percent 0.5\n",
        {"config.json": '{"model_type": "qwen3"}'},
        "partial-rotary-differs",
        "error",
    ),
    (
        "a quarter in config.json, all in Megatron",
        "vllm serve m\ntorchrun pretrain_gpt.py --num-layers 2\n",
        {"config.json": '{"model_type": "glm4_moe", "partial_rotary_factor": 0.25}'},
        "partial-rotary-differs",
        "error",
    ),
    (
        "sigmoid over a softmax router",
        "vllm serve m\ntorchrun pretrain_gpt.py --num-layers 2 --num-experts 8 --moe-router-score-function sigmoid\n",
        {"config.json": '{"model_type": "qwen3_moe", "num_experts": 8}'},
        "router-scoring-differs",
        "error",
    ),
    (
        "a window that the model has not",
        "vllm serve m\ntorchrun pretrain_gpt.py --num-layers 2 --window-size 4096,0\n",
        {"config.json": '{"model_type": "qwen3", "sliding_window": null}'},
        "sliding-window-added",
        "error",
    ),
    (
        "no window",
        "vllm serve m\ntorchrun pretrain_gpt.py --num-layers 2 --window-size -1,-1\n",
        {"config.json": '{"model_type": "qwen3", "sliding_window": null}'},
        "sliding-window-added",
        None,
    ),
    ("half precision beside bf16", "vllm serve Q --dtype float16\n" + HF, {}, "megatron-dtype-differs", "error"),
    ("bf16 beside bf16", "vllm serve Q --dtype bfloat16\n" + HF, {}, "megatron-dtype-differs", None),
    ("the base model is served", "vllm serve Qwen/Qwen3-8B-Base\n" + HF, {}, "model-name-differs", "warning"),
    ("the same model elsewhere", "vllm serve /data/Qwen3-8B/\n" + HF, {}, "model-name-differs", None),
    (
        "the same model in the cache",
        "vllm serve /c/hub/models--Qwen--Qwen3-8B/snapshots/0123456789abcdef0123456789abcdef01234567\n" + HF,
        {},
        "model-name-differs",
        None,
    ),
    ("a checkpoint's folder", "vllm serve /out/global_step_40\n" + HF, {}, "model-name-differs", None),
    ("adapters in the server", "vllm serve Qwen3-8B --enable-lora\n" + HF, {}, "lora-rollout-only", "warning"),
    (
        "adapters on both sides",
        "vllm serve Qwen3-8B --enable-lora\n" + HF.strip() + " --lora_r 16\n",
        {},
        "lora-rollout-only",
        None,
    ),
    (
        "the trainer has the variable",
        "vllm serve Qwen3-8B\nVLLM_BATCH_INVARIANT=1 " + HF,
        {},
        "batch-invariance-one-side",
        "warning",
    ),
    (
        "the server has the variable",
        "VLLM_BATCH_INVARIANT=1 vllm serve Qwen3-8B\n" + HF,
        {},
        "batch-invariance-one-side",
        None,
    ),
    (
        "YaRN by an override",
        'vllm serve Q --hf-overrides \'{"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}\'\n' + HF,
        {"config.json": '{"model_type": "qwen3", "rope_scaling": null}'},
        "rope-scaling-one-side",
        "error",
    ),
    (
        "YaRN in config.json",
        "vllm serve Q\n" + HF,
        {"config.json": '{"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'},
        "rope-scaling-one-side",
        None,
    ),
    (
        "a server in a container",
        "docker run --rm -v /m:/m -e A=1 my/image:1 vllm serve /m/Qwen3-8B --kv-cache-dtype fp8\n",
        {},
        "quantised-kv-cache",
        "warning",
    ),
    (
        "vLLM's own image",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.23.0 --model Q --kv-cache-dtype=fp8\n",
        {},
        "quantised-kv-cache",
        "warning",
    ),
    (
        "another activation by an override",
        'vllm serve Q --hf-overrides \'{"hidden_act": "gelu"}\'\n' + HF,
        {"config.json": '{"model_type": "qwen3", "hidden_act": "silu"}'},
        "model-key-differs",
        "error",
    ),
    (
        "a penalty behind raw values",
        "vllm serve Q --override-generation-config '{\"repetition_penalty\": 1.1}'\n",
        {},
        "repetition-penalty",
        None,
    ),
    (
        "tokens drawn with a penalty",
        "vllm serve Q --override-generation-config '{\"repetition_penalty\": 1.1}'\n",
        {},
        "truncation-with-raw",
        "warning",
    ),
    (
        "drafts in a log",
        RUN.format(""),
        {
            "serve.log": "INFO Initializing a V1 LLM engine (v0.23.0) with config: model='Q', speculative_config="
            "SpeculativeConfig(method='eagle', model='x', num_spec_tokens=3), dtype=torch.bfloat16\n"
        },
        "speculative-decoding",
        "warning",
    ),
    (
        "no drafts in a log",
        RUN.format(""),
        {
            "serve.log": "INFO Initializing a V1 LLM engine (v0.23.0) with config: model='Q', speculative_config=None, "
            "dtype=torch.bfloat16\n"
        },
        "speculative-decoding",
        None,
    ),
]


@pytest.mark.parametrize(("script", "files", "rule", "severity"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_known_cases(script: str, files: dict[str, str], rule: str, severity: str | None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\n" + script)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = audit_paths([tmp_path])
    hits = [f for f in found.findings if f.rule == rule]
    shown = [(f.rule, f.severity, f.key, f.value) for f in found.findings]
    assert [f.severity for f in hits] == ([severity] if severity else []), (shown, found.evidence.unread)
