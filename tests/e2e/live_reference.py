"""Log-probabilities of a model folder computed apart from the product, one sequence at a time."""

from pathlib import Path

import numpy as np
import psutil
from logdiff.case.sequences import read_sequences


def reference_logprobs(model: Path, sequences: Path, dtype: str, temperature: float = 1.0) -> np.ndarray:
    """float64 [T]: log-softmax of logits / temperature of every response token of a sequence file."""
    import torch
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    found = read_sequences(sequences)
    values = []
    with torch.no_grad():
        for i in range(len(found.sample_ids)):
            prompt, response = found.prompt(i).tolist(), found.response(i).tolist()
            logits = net(torch.tensor([prompt + response])).logits[0].double() / temperature
            rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
            values += [float(row[t]) for row, t in zip(rows, response, strict=True)]
    return np.array(values)


def children() -> set[int]:
    """Processes below this one."""
    return {c.pid for c in psutil.Process().children(recursive=True) if c.status() != psutil.STATUS_ZOMBIE}
