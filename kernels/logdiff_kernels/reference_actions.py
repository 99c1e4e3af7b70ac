"""The task `reference`: what the checkpoint itself gives for given tokens, free of either side's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logdiff_kernels import sequences as files
from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.engines.settings import Sampling
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.protocol import plain, required

WIDE = "float32"


def reference(task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Load the checkpoint with plain Transformers and score the sequences, alone and one by one.

    Task: {"model", "dtype", "input": sequence file, "sampling", "output": JSON}. Scored twice: in float32, the
    yardstick, and in the run's `dtype`, which says what that dtype alone costs; attention is `eager` (every term of
    the configuration is in it), the layout `single`.

    The result is {"scores": {dtype: sequence file}, "weights": `logdiff-weights/1` of the checkpoint in `dtype`,
    "failed": {dtype: words}}; files lie beside `output`.
    """
    output = Path(required(task, "output", str))
    given = files.read(required(task, "input", str))
    sampling = Sampling.parse(task.get("sampling") or {})
    model, dtype = required(task, "model", str), required(task, "dtype", str)
    document: dict[str, Any] = {"scores": {}, "weights": None, "failed": {}}
    written: dict[str, Path] = {}
    for name in dict.fromkeys((dtype, WIDE)):
        try:
            made = _scored(model, name, given, sampling, output, progress, weights=name == dtype)
        except RunnerError as error:
            document["failed"][name] = error.message
            continue
        document["scores"][name] = made["scores"].name
        written |= {f"scores-{name}": made["scores"]}
        if "weights" in made:
            document["weights"] = made["weights"].name
            written["weights"] = made["weights"]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(plain(document), indent=1), encoding="utf-8")
    return TaskOutput({"reference": output, **written}, {"scores": sorted(document["scores"])})


def _scored(
    folder: str,
    dtype: str,
    given: files.Sequences,
    sampling: Sampling,
    output: Path,
    progress: Progress,
    *,
    weights: bool,
) -> dict[str, Path]:
    from logdiff_kernels.engines.transformers.loading import load
    from logdiff_kernels.engines.transformers.scorer import Scorer
    from logdiff_kernels.engines.transformers.settings import Score
    from logdiff_kernels.engines.transformers.tensors import weights_report

    progress(0, None, "", f"loading the checkpoint in {dtype}")
    loaded = load(folder, dtype, {"attn_implementation": "eager"})
    made: dict[str, Path] = {}
    if weights:
        made["weights"] = weights_report(loaded.model, progress).write(output.with_name(f"{output.stem}-weights.json"))
    scores = Scorer(loaded.model, 0).score(
        given.prompts,
        given.responses,
        Score(layout="single"),
        temperature=sampling.scored_temperature,
        progress=progress,
        topk=sampling.topk,
    )
    metadata = {"task": "reference", "step": given.metadata.get("step", 0), "dtype": dtype}
    found = files.build(given.sample_ids, given.prompts, given.responses, columns=scores.columns, metadata=metadata)
    made["scores"] = files.write(output.with_name(f"{output.stem}-{dtype}.safetensors"), found)
    return made
