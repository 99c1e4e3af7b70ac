"""From a rule's condition to settings that make it hold, or fail: the plants of the generator."""

from __future__ import annotations

import random
from typing import Any

from logdiff.audit.rule import Condition, Rules


class UnsatisfiableError(Exception):
    """This draw leads nowhere; draw again."""


ABSENT = object()
"""The key is not to be set."""

Wanted = dict[str, Any]
"""`side.key` to its value."""

_WORDS = ("alpha", "beta", "gamma")


class Solver:
    """Draws settings for one rule set."""

    def __init__(self, rules: Rules, rng: random.Random, frameworks: frozenset[str]) -> None:
        self.terms = rules.terms
        self.rng = rng
        self.frameworks = frameworks

    def hold(self, condition: Condition) -> Wanted:
        """Settings under which a condition holds."""
        return self._solve(condition, True)

    def fail(self, condition: Condition) -> Wanted:
        """Settings under which it does not."""
        return self._solve(condition, False)

    def _solve(self, c: Condition, truth: bool) -> Wanted:
        if c.none is not None:
            return self._each(c.none, False) if truth else self._one(c.none, True)
        if c.all is not None:
            return self._each(c.all, True) if truth else self._one(c.all, False)
        if c.any is not None:
            return self._one(c.any, True) if truth else self._each(c.any, False)
        if c.term is not None:
            return self._solve(self.terms[c.term], truth)
        if c.framework is not None:
            if (c.framework in self.frameworks) is not truth:
                raise UnsatisfiableError
            return {}
        if c.package is not None:
            key = f"both.package.{c.package}"
            wants = c.absent is not truth
            if c.version is not None or (wants and c.package in ("vllm-ascend", "torch-npu")):  # other ways lead there
                raise UnsatisfiableError
            return {key: "1.0" if wants else ABSENT}
        if c.differs_across_sides is not None:
            return self._pair(f"rollout.{c.differs_across_sides}", f"train.{c.differs_across_sides}", truth)
        if c.one_side_only is not None:
            if not truth:
                return {f"rollout.{c.one_side_only}": ABSENT, f"train.{c.one_side_only}": ABSENT}
            sides = self.rng.sample(["rollout", "train"], 2)
            value = self._value_of(c.one_side_only)
            return {f"{sides[0]}.{c.one_side_only}": value, f"{sides[1]}.{c.one_side_only}": ABSENT}
        return self._test(c, truth)

    def _each(self, parts: tuple[Condition, ...], truth: bool) -> Wanted:
        wanted: Wanted = {}
        for part in parts:
            for key, value in self._solve(part, truth).items():
                if key in wanted and wanted[key] is not value and wanted[key] != value:
                    if value is ABSENT and part.key is not None and part.set is False:
                        wanted[key] = ABSENT  # the default is to give the value
                        continue
                    if value is ABSENT:
                        if truth:
                            raise UnsatisfiableError
                        continue
                    if wanted[key] is not ABSENT and not _compatible(parts, key):
                        raise UnsatisfiableError
                wanted[key] = value
        return wanted

    def _one(self, parts: tuple[Condition, ...], truth: bool) -> Wanted:
        for part in self.rng.sample(list(parts), len(parts)):
            try:
                return self._solve(part, truth)
            except UnsatisfiableError:
                continue
        raise UnsatisfiableError

    def _value_of(self, key: str) -> Any:
        if key.startswith("package."):
            return self.rng.choice(["1.0.0", "2.0.0"])
        if key in ("env.HCCL_DETERMINISTIC", "env.HCCL_OP_EXPANSION_MODE"):
            return self.rng.choice(["strict", "true"]) if "DETERMINISTIC" in key else self.rng.choice(["AIV", "AI_CPU"])
        return self.rng.choice([1, 2])

    def _pair(self, left: str, right: str, truth: bool) -> Wanted:
        name = left.partition(".")[2]
        first, second = self.rng.sample(PAIRS.get(name, [1, 2, 4]), 2)
        return {left: first, right: second} if truth else {left: first, right: first}

    def _test(self, c: Condition, truth: bool) -> Wanted:
        side, _, name = (c.key or "").partition(".")
        if side == "any":
            if not truth:
                return {f"{s}.{name}": ABSENT for s in ("rollout", "train")}
            side = "both" if name.startswith("env.") else self.rng.choice(["rollout", "train"])
        key = f"{side}.{name}"
        test = c.test
        if test == "differs_from":
            other = (c.differs_from or "").replace("any.", "both.")
            if name.startswith("package."):
                key = f"both.{name}"
            return self._pair(key, other, truth)
        if test == "absent":
            return {key: ABSENT if c.absent is truth else 1}
        if test == "set":
            return {key: 1 if c.set is truth else ABSENT}
        if not truth:
            return {key: self._other(c)}
        if test == "equals":
            return {key: c.equals}
        if test == "not":
            return {key: self._unequal(name, c.not_)}
        if test == "in":
            return {key: self.rng.choice(c.in_ or ())}
        if test == "not_in":
            return {key: self._outside(name)}
        if test == "greater":
            return {key: self._above(name, float(c.greater or 0))}
        if test == "less":
            return {key: round(self.rng.uniform(0.1, 0.9) * float(c.less or 1), 3)}
        return {key: NONEMPTY[name] if c.matches == "." else MATCHES[c.matches or ""]}

    def _other(self, c: Condition) -> Any:
        """A value that fails a test: mostly none at all."""
        if c.test == "equals" and isinstance(c.equals, bool):
            return not c.equals
        return ABSENT

    def _unequal(self, name: str, value: Any) -> Any:
        if isinstance(value, float) or name in ("temperature", "repetition_penalty"):
            return round(self.rng.uniform(0.1, 0.95), 3)
        return self.rng.choice([v for v in (0, 1, 2, 64) if v != value])

    def _outside(self, name: str) -> Any:
        return OUTSIDE.get(name, self.rng.choice(_WORDS))

    def _above(self, name: str, border: float) -> Any:
        if name in ("temperature", "min_p", "attention_dropout", "hidden_dropout", "lora_dropout"):
            return round(self.rng.uniform(0.05, 0.9), 3)
        return int(border) + self.rng.choice([1, 2, 4, 64])


def _compatible(parts: tuple[Condition, ...], key: str) -> bool:
    """Two tests of one key in a conjunction (not 1.0, greater than 0): the audit itself checks the later draw."""
    return sum(part.key is not None and part.key.partition(".")[2] == key.partition(".")[2] for part in parts) > 1


PAIRS: dict[str, list[Any]] = {
    "dtype": ["bfloat16", "float16", "float32"],
    "model.rms_norm_eps": [1e-6, 1e-5, 2e-6],
    "model.rope_theta": [10000, 1000000, 500000],
    "model.tie_word_embeddings": [True, False],
    "model.attention_bias": [True, False],
    "model.norm_topk_prob": [True, False],
    "model.scoring_func": ["softmax", "sigmoid"],
    "model.rotary_interleaved": [True, False],
    "model.rope_truncate": [True, False],
    "model.rope_type": ["yarn", "linear"],
    "model.partial_rotary_factor": [1.0, 0.5, 0.25],
    "full_determinism": [True, False],
    "batch_invariant_mode": [True, False],
    "padded_vocab_size": [151936, 152064],
    "temperature": [0.7, 1.0],
    "env.HCCL_DETERMINISTIC": ["strict", "true"],
    "env.HCCL_OP_EXPANSION_MODE": ["AIV", "AI_CPU"],
    "env.NCCL_ALGO": ["Ring", "Tree"],
    "env.VLLM_BATCH_INVARIANT": [0, 1],
    **{f"package.{n}": ["2.9.0", "2.10.0"] for n in ("torch", "torch-npu", "triton-ascend", "transformers",
                                                      "batch-invariant-ops", "flash-attn-npu")},
}  # fmt: skip

OUTSIDE: dict[str, Any] = {
    "attention_backend": "TRITON_ATTN",
    "banned_token_ids": [7, 8],
    "logits_processors": ["my.module:Processor"],
    "quantization": "fp8",
    "model.rope_type": "yarn",
    "router_dtype": "bfloat16",
}

MATCHES = {
    "true_on_policy": "verl_ascend_recipe.true_on_policy.patch",
    "expandable_segments": "expandable_segments:True",
    "(?i)(-a\\d+b|moe|mixtral|deepseek-?v[234]|gpt-oss|kimi-k2)": "/models/Qwen3-30B-A3B",
    "(?i)gpt-?oss": "/models/gpt-oss-20b",
    "(?i)fp8|int8|int4": "fp8_e4m3",
    "[0-9]": 0.0884,
}

NONEMPTY: dict[str, Any] = {
    "window_size": [127, 0],
    "speculative_method": "mtp",
    "fp8": "e4m3",
    "quantization": "fp8",
    "rollout_data_dir": "/tmp/rollouts",
}
