"""A runner that speaks `logdiff-request/1` without an engine; misbehaves as its side's `args` say.

Tasks `generate`, `force`, `rescore` and `score` follow a made-up model: logprob of token t at position p is
-(1 + (t + p) % 7) / 8, minus `args.offset` unless LOGDIFF_ALIGN names an overlay for this side, minus each of
`args.sources` (operator -> offset) whose operator is not aligned, by the overlay or by the task's `align`.
Weights are one tensor. Standard library, numpy and safetensors.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

EVENTS = os.dup(1)
os.dup2(2, 1)


def emit(event, **fields):
    os.write(EVENTS, json.dumps({"event": event, **fields}).encode() + b"\n")


def fail(kind, message, task, fatal, hint=""):
    emit("error", task=task, error={"type": kind, "message": message, "value": "v", "hint": hint}, fatal=fatal)


def watch_parent(lines, alive):
    for line in os.fdopen(os.dup(0)):
        lines.append(line)
        alive.set()
    lines.append(None)
    alive.set()
    if os.environ.get("FAKE_IGNORE_EOF"):
        return
    time.sleep(0.2)
    os._exit(9)


def count(name):
    folder = os.environ.get("FAKE_COUNT")
    if folder:
        with Path(folder, name).open("a") as stream:
            stream.write("x")


def read(path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as stream:
        return {k: stream.get_tensor(k) for k in stream.keys()}, stream.metadata()  # noqa: SIM118


def write(path, arrays, metadata):
    from safetensors.numpy import save

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(path + ".tmp")
    temporary.write_bytes(save(arrays, metadata=metadata))
    temporary.replace(path)


def logprobs(ids, offsets, offset):
    import numpy as np

    position = np.concatenate([np.arange(b - a) for a, b in itertools.pairwise(offsets)] + [np.zeros(0, np.int64)])
    return (-(1 + (ids + position) % 7) / 8 - offset).astype(np.float32)


def overlay(request):
    path = os.environ.get("LOGDIFF_ALIGN")
    if not path or (request.get("args") or {}).get("deaf"):
        return None
    found = json.loads(Path(path).read_text())
    return found if request.get("side") in found["sides"] else None


def alignment(task):
    """A native dispatch whose digest is FAKE_DIGEST; a set LOGDIFF_ALIGN makes it another one."""
    on = bool(os.environ.get("LOGDIFF_ALIGN"))
    digest = os.environ.get("FAKE_DIGEST", "d0") + ("-aligned" if on else "")
    dispatch = {"digest": digest, "native": not on, "foreign": [], "entries": 3}
    if task["task"] == "dispatch":
        return dispatch
    return {
        "engine": {"name": task["engine"], "version": os.environ.get("FAKE_VERSION", "1")},
        "packages": {"torch": "2"},
        "model": {"sha256": "m", "type": "fake"},
        "provider": {"contract": "aligned/1", "source": "s0"},
        "not_covered": [{"module": f"model.{n}", "why": "fake"} for n in (task["args"] or {}).get("odd", [])],
        "unchecked": None,
        "dispatch": dispatch,
    }


def reference(task):
    """The made-up model in fp32, and off by at most 1/64 in the run's dtype."""
    import numpy as np

    arrays, metadata = read(task["input"])
    folder, scores = Path(task["output"]).parent, {}
    for dtype in (task["dtype"], "float32"):
        values = logprobs(arrays["response_ids"], arrays["response_offsets"], 0.0)
        if dtype != "float32":
            values = values + (np.arange(len(values)) % 3 - 1).astype(np.float32) / 64
        scores[dtype] = f"reference-{dtype}.safetensors"
        write(str(folder / scores[dtype]), {**arrays, "logprobs": values}, {**metadata, "task": "reference"})
    Path(task["output"]).write_text(json.dumps({"scores": scores, "weights": None, "failed": {}}))
    count("reference")
    return task["output"]


def switch(task, args, state):
    """Follow the task's `align`. Returns (facts of the switch, why not)."""
    if "align" not in task or args.get("mute"):
        return {}, None
    if args.get("compiled") and task["align"]:
        return {}, "a compiled engine can't be switched in place"
    odd = [op for op in task["align"] if op in args.get("uncovered", [])]
    if odd:
        return {}, f"no aligned operator for {odd[0]}"
    if task["align"] != state["ops"]:
        count("switch")
    state["ops"] = task["align"]
    facts = {"ops": task["align"], "operators": args.get("operators", []), "bytes": 100, "seconds": 0.0}
    return {"aligned": {**facts, "task_seconds": args.get("seconds", 0.01) * (2 if task["align"] else 1)}}, None


def do(task, request, state):
    import numpy as np

    name, args = task["task"], request.get("args") or {}
    if name in args.get("unsupported", []):
        return fail("UnsupportedError", f"{name} can't be had here", task["id"], False, "use another engine")
    if name in args.get("bad_input", []):
        return fail("InputError", f"bad input for {name}", task["id"], False)
    if name == args.get("refuse"):
        return fail("EngineError", f"no {name} today", task["id"], False)
    if name == os.environ.get("FAKE_DIES_AT"):
        os._exit(7)
    if name == args.get("exit_at"):
        os._exit(args.get("exit_code", 7))
    if name == args.get("kill_at"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == args.get("hang_at"):
        time.sleep(1000)
    if name == args.get("slow_at"):
        time.sleep(args.get("slow", 1.0))
    if name == args.get("oom_at"):
        print("RuntimeError: CUDA out of memory. Tried to allocate 3 TiB", file=sys.stderr, flush=True)
        os._exit(1)
    emit("progress", task=task["id"], done=1, total=2, unit="samples", message="half")
    path = os.environ.get("LOGDIFF_ALIGN")
    if path and not Path(path).is_file():
        return fail("InputError", "the alignment overlay can't be read", task["id"], False, "unset LOGDIFF_ALIGN")
    aligned = overlay(request)
    offset = (0.0 if aligned else args.get("offset", 0.0)) + state["shift"] + float(os.environ.get("FAKE_OFFSET", "0"))
    switched, why = switch(task, args, state)
    if why:
        return fail("UnsupportedError", why, task["id"], False)
    ops = aligned["ops"] if aligned else state["ops"]
    offset += sum(value for op, value in args.get("sources", {}).items() if op not in ops or args.get("still"))
    offset += 1 if len(ops) > 5 and not args.get("still") else 0  # both sides, so no d
    if name in ("generate", "force", "rescore", "score"):
        arrays, metadata = read(task["input"])
        if name == "generate":
            lengths = [1 + (i % task["sampling"]["max_tokens"]) for i in range(len(arrays["prompt_offsets"]) - 1)]
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            arrays["response_offsets"] = offsets
            arrays["response_ids"] = ((np.arange(offsets[-1]) * 5 + state["shift"] * 8) % 23).astype(np.int64)
        extra = args.get("batch_offset", 0.0) if task.get("batch") == 1 else 0.0
        arrays["logprobs"] = logprobs(arrays["response_ids"], arrays["response_offsets"], offset + extra)
        write(task["output"], arrays, {**metadata, "task": name})
        count(name)
        return emit("result", task=task["id"], files={"output": task["output"]}, data=switched)
    if name == "realign":
        state["ops"] = task["ops"]
        count("realign")
        return emit("result", task=task["id"], files={}, data={})
    if name == "capture" and not args.get("captures"):
        return fail("UnsupportedError", "nothing can be looked into here", task["id"], False)
    if name == "capture":
        arrays, metadata = read(task["input"])
        write(task["output"], {"x": np.zeros(1)}, metadata)
        return emit("result", task=task["id"], files={"output": task["output"]}, data={})
    if name == "reference":
        return emit("result", task=task["id"], files={"reference": reference(task)}, data={})
    if name == "tokenize":
        ids = [[3 + (ord(c) % 90) for c in text] for text in task["texts"]]
        write(
            task["output"],
            {
                "prompt_ids": np.array([i for p in ids for i in p], np.int64),
                "prompt_offsets": np.concatenate([[0], np.cumsum([len(p) for p in ids])]).astype(np.int64),
            },
            {"format": "logdiff-sequences/1", "sample_ids": json.dumps([str(i) for i in range(len(ids))])},
        )
        return emit("result", task=task["id"], files={"output": task["output"]}, data={})
    if name in ("update", "reload"):
        state["shift"] += 0.125
        if name == "update":
            folder = Path(task["output"])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_text("w")
        count(name)
        return emit("result", task=task["id"], files={}, data={})
    if name in ("align_check", "dispatch"):
        return emit("result", task=task["id"], files={}, data=alignment(task))
    document = {
        "weights": {
            "format": "logdiff-weights/1",
            "tensors": {
                "w": {
                    "dtype": "float32",
                    "shape": [1],
                    "sum": f"{int(state['shift'] * 8):032x}",
                    "as": {},
                    "how": "memory",
                }
            },
            "tied": {},
            "not_covered": [],
            "quantization": None,
            "adapters": [],
        },
        "fingerprint": {
            "format": "logdiff-fingerprint/1",
            "engine": {"name": request.get("engine"), "version": "0"},
            "effective": {"temperature": 1.0, "logprobs_mode": "raw_logprobs"},
            "config": {
                "cache_config": {"block_size": 16, "enable_prefix_caching": True},
                "scheduler_config": {"enable_chunked_prefill": True, "max_num_batched_tokens": 512},
            },
            "packages": {},
            "env": {},
            "aligned": aligned
            and {
                "contract": aligned["contract"],
                "provider": aligned["provider"],
                "isa": "generic",
                "binary_hash": args.get("binary", "b0"),
                "ops": aligned["ops"],
            },
        },
        "decode_text": [[f"<{token}>" for token in ids] for ids in task.get("ids") or []],
    }.get(name)
    if document is None:
        return emit(
            "result", task=task["id"], files={}, data={"pid": os.getpid(), "env": dict(os.environ), "task": task}
        )
    Path(task["output"]).write_text(json.dumps(document))
    count(name)
    emit("result", task=task["id"], files={"output": task["output"]}, data={})


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    args = request.get("args") or {}
    lines, alive = [], threading.Event()
    threading.Thread(target=watch_parent, args=(lines, alive), daemon=True).start()
    how = os.environ.get("FAKE_START") or args.get("start")
    if os.environ.get("FAKE_IGNORE_TERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("FAKE_CHILD"):
        grandchild = subprocess.Popen(["sleep", "1000"], start_new_session=os.environ["FAKE_CHILD"] == "session")
        Path(os.environ["FAKE_CHILD_PID"]).write_text(str(grandchild.pid))
    if how == "garbage":
        for _ in range(1000):
            os.write(EVENTS, b"welcome to this machine\n")
    if how == "banner":
        os.write(EVENTS, b"welcome to this machine\n\n[1, 2]\n")
    if how == "huge":
        block = b"x" * (1 << 20)
        for _ in range(64):
            os.write(EVENTS, block)
        time.sleep(1000)
    if how == "noise":
        for i in range(200_000):
            print(f"line {i} " + "-" * 60, file=sys.stderr)
    if how == "silent":
        time.sleep(1000)
    if how == "die":
        print("ImportError: no module named nothing", file=sys.stderr)
        sys.exit(5)
    emit(
        "hello",
        protocol="logdiff-request/9" if how == "old" else "logdiff-request/1",
        pid=os.getpid(),
        python="3",
        version="0",
    )
    if args.get("refuse_block_size", -1) == args.get("block_size"):
        fail("EngineError", f"block_size {args['block_size']} is no good", None, True)
        sys.exit(2)
    if how == "refuse":
        fail("InputError", "unexpected keyword argument 'enforce_eagre'", None, True, "see the engine's arguments")
        sys.exit(2)
    count("start-" + str(request["engine"]))
    emit("ready", engine=request["engine"], seconds=0.0)
    state = {"shift": args.get("shift", 0.0), "ops": []}
    while True:
        alive.wait()
        line = lines.pop(0)
        if not lines:
            alive.clear()
        if line is None:
            break
        task = json.loads(line)
        if task["task"] == "stop":
            break
        do(task, request, state)
    emit("done")


main()
