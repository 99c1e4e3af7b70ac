"""Every place where vLLM makes a log-probability: raw and processed, sampled tokens and prompts."""

from __future__ import annotations

from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches

_PROCESSED = "processed_logprobs"


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `Sampler.compute_logprobs` and the log-softmax inside the top-k/top-p sampler.

    vLLM divides by the temperature in place before either, in fp32, as the contract does.
    """
    if "logprob" not in spec:
        return
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.sample.sampler import Sampler

    def compute_logprobs(logits: torch.Tensor) -> torch.Tensor:
        return ops.log_softmax(logits.to(torch.float32))

    def sampler(stock: Any) -> Any:
        def forward(self: Any, logits: torch.Tensor, generators: Any, k: Any, p: Any) -> Any:
            if self.logprobs_mode != _PROCESSED:
                return stock(self, logits, generators, k, p)
            filtered = topk_topp_sampler.apply_top_k_top_p(logits, k, p)
            logprobs = compute_logprobs(filtered)
            self.logprobs_mode = "raw_logprobs"  # the stock function then leaves its own log-softmax out
            try:
                sampled, _ = stock(self, filtered, generators, None, None)
            finally:
                self.logprobs_mode = _PROCESSED
            return sampled, logprobs

        return forward

    patches.set(Sampler, "compute_logprobs", staticmethod(compute_logprobs))
    patches.wrap(TopKTopPSampler, "forward_native", sampler)
    patches.wrap(TopKTopPSampler, "forward_cpu", sampler)
