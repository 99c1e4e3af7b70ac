"""One vLLM engine for `engines.py`: `python _vllm_child.py MODEL`; requests and answers are JSON lines.

`{"prompts": [[id, ...], ...], "max_tokens": n}` on standard input gives `{"tokens": [[id, ...], ...], "logprobs":
[[...]]}` on standard output once all have ended; the first line says `{"vllm": version, "threads": n}`. Engine messages
go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> int:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    import vllm
    from logdiff_kernels.engines.vllm.launch import start, stop
    from logdiff_kernels.engines.vllm.requests import Job, run_jobs
    from logdiff_kernels.protocol import Request

    args = {"enforce_eager": True, "max_model_len": 1024, "block_size": 128, "enable_prefix_caching": False}
    started = start(Request("vllm", "rollout", sys.argv[1], "bfloat16", args))
    answers.write(json.dumps({"vllm": vllm.__version__, "threads": torch.get_num_threads()}) + "\n")
    for line in sys.stdin:
        wanted = json.loads(line)
        params = vllm.SamplingParams(
            temperature=1.0, max_tokens=wanted["max_tokens"], ignore_eos=True, logprobs=0, detokenize=False
        )
        found: dict[int, Any] = {}
        jobs = [Job(number, prompt, params) for number, prompt in enumerate(wanted["prompts"])]
        run_jobs(started.llm, jobs, batch=None, finished=found.__setitem__)
        outputs = [found[number].outputs[0] for number in range(len(jobs))]
        tokens = [list(output.token_ids) for output in outputs]
        logprobs = [
            [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
            for output in outputs
        ]
        answers.write(json.dumps({"tokens": tokens, "logprobs": logprobs}) + "\n")
    stop(started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
