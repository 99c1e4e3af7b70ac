"""Engine vllm-http against a small server on loopback that answers, delays, refuses and lies as told."""

import contextlib
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from logdiff.case.sequences import build_sequences, read_sequences, write_sequences
from logdiff.errors import CancelledError, EngineError, InputError
from logdiff.target import EngineSpec, UnsupportedError, start
from logdiff.target.http_client import _retry_after


def logprob(token, position, temperature=1.0):
    return float(np.float32(-(1 + (token + position) % 7) / 9) * np.float32(1 / temperature))


class Server:
    """Serves a made-up model; `lies` maps a path to a function (body, answer, attempt) -> (status, headers, bytes)."""

    def __init__(self):
        self.lies = {}
        self.requests = []
        self.in_flight = self.most_in_flight = 0
        self.delay = 0.0
        self.mode = "raw"
        self.top = -0.0625
        self.models = [{"id": "tiny", "max_model_len": 99}]
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def answer(self, body):
                with lock:
                    outer.requests.append((self.path, body, dict(self.headers)))
                    attempt = sum(1 for p, b, _ in outer.requests if (p, b) == (self.path, body))
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                time.sleep(outer.delay)
                status, headers, data = 200, {}, json.dumps(outer.truth(self.path, body)).encode()
                if data == b"null":
                    status, data = 404, b'{"detail": "Not Found"}'
                if self.path in outer.lies:
                    told = outer.lies[self.path](body, json.loads(data), attempt)
                    status, headers, data = told or (status, headers, data)
                with lock:
                    outer.in_flight -= 1
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(data)

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_):
                pass  # a client that goes away is part of the tests

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def truth(self, path, body):
        if path == "/v1/models":
            return {"data": self.models}
        if path == "/version":
            return {"version": "0.32.0"}
        if path == "/tokenize":
            text = body["prompt"] if "prompt" in body else "".join(m["content"] for m in body["messages"]) + "!"
            return {"tokens": [ord(c) for c in text], "count": len(text)}
        if path != "/v1/completions":
            return None
        prompt = body["prompt"]
        choice = {"index": 0, "text": "words", "prompt_token_ids": prompt}
        if body.get("prompt_logprobs") is not None:
            entries = [None]
            for i, token in enumerate(prompt[1:], start=1):
                entry = {str(token): {"logprob": logprob(token, i), "rank": 2, "decoded_token": "x"}}
                if body["prompt_logprobs"]:
                    entry = {"1": {"logprob": -0.01, "rank": 1}, **entry}  # the most likely one stands first
                entries.append(entry)
            choice |= {"prompt_logprobs": entries, "token_ids": [0]}
        else:
            ids = [(sum(prompt) + 3 * i) % 50 for i in range(min(body["max_tokens"], 1 + len(prompt) % 5))]
            temperature = body["temperature"] if self.mode == "processed" and body["temperature"] else 1.0
            values = [logprob(t, len(prompt) + i, temperature) for i, t in enumerate(ids)]
            choice |= {
                "token_ids": ids,
                "logprobs": {
                    "tokens": [f"token_id:{t}" for t in ids],
                    "token_logprobs": values,
                    "top_logprobs": [
                        {f"token_id:{t}": v, "token_id:77": self.top / temperature}
                        for t, v in zip(ids, values, strict=True)
                    ],
                },
            }
        return {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}, "system_fingerprint": "vllm-x"}


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


SAMPLING = {"max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 3, "topk": 0, "ignore_eos": False}
PROMPTS = [[5, 6, 7], [8], [9, 10], [11, 12, 13, 14]]


def spec(server, sampling=None, env=None, modules=None, **args):
    return EngineSpec(
        engine="vllm-http",
        side="rollout",
        model="unused",
        dtype="bfloat16",
        args={"url": server.url, "retries": 2, **args},
        sampling={**SAMPLING, **(sampling or {})},
        env=env or {},
        modules=modules or [],
    )


@pytest.fixture
def engine(server, tmp_path):
    engine = start(spec(server), log=tmp_path / "x.log")
    yield engine
    engine.close()


@pytest.fixture
def prompts(tmp_path):
    return str(write_sequences(tmp_path / "in.safetensors", build_sequences(list("abcd"), PROMPTS)))


def generate(engine, prompts, tmp_path, **task):
    sampling = task.pop("sampling", SAMPLING)
    task = {
        "task": "generate",
        "input": prompts,
        "output": str(tmp_path / "out.safetensors"),
        "sampling": sampling,
        **task,
    }
    return engine.run(task), read_sequences(tmp_path / "out.safetensors")


def test_generated_ids_and_logprobs_come_back_by_id_with_their_bits(engine, prompts, tmp_path):
    result, out = generate(engine, prompts, tmp_path)
    assert out.sample_ids == list("abcd")
    for i, prompt in enumerate(PROMPTS):
        ids = [(sum(prompt) + 3 * k) % 50 for k in range(min(4, 1 + len(prompt) % 5))]
        assert out.prompt(i).tolist() == prompt
        assert out.response(i).tolist() == ids
        expected = np.array([logprob(t, len(prompt) + k) for k, t in enumerate(ids)], np.float32)
        assert out.columns["logprobs"][out.span(i)].tobytes() == expected.tobytes()
    assert result.data["fp32_exact"] is True


def test_no_default_of_the_server_can_change_the_sampling(engine, server, prompts, tmp_path):
    generate(engine, prompts, tmp_path)
    body = next(b for p, b, _ in server.requests if p == "/v1/completions")
    assert body["temperature"] == 1.0
    assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"], body["min_p"]) == (
        1,
        0,
        0,
        0,
    )
    assert (body["top_p"], body["top_k"], body["n"]) == (1.0, -1, 1)
    assert body["return_token_ids"]


def test_equal_prompts_are_sampled_with_seeds_of_their_own(engine, server, tmp_path):
    path = write_sequences(tmp_path / "same", build_sequences(list("abc"), [[5, 6]] * 3))
    generate(engine, str(path), tmp_path)
    seeds = {b["seed"] for p, b, _ in server.requests if p == "/v1/completions"}
    assert len(seeds) == 3
    generate(engine, str(path), tmp_path)
    assert {b["seed"] for p, b, _ in server.requests if p == "/v1/completions"} == seeds


def test_topk_is_kept_by_id_most_likely_first(server, prompts, tmp_path):
    engine = start(spec(server, sampling={"topk": 2}), log=tmp_path / "x.log")
    _, out = generate(engine, prompts, tmp_path, sampling={**SAMPLING, "topk": 2})
    engine.close()
    assert out.columns["topk_ids"][:, 0].tolist() == [77] * out.tokens
    assert out.columns["topk_ids"][:, 1].tolist() == out.response_ids.tolist()
    assert np.array_equal(out.columns["topk_logprobs"][:, 1], out.columns["logprobs"])


def test_rescore_reads_the_entry_of_each_token_never_the_first(server, prompts, tmp_path):
    engine = start(spec(server, sampling={"topk": 1}), log=tmp_path / "x.log")
    path = write_sequences(tmp_path / "s.safetensors", build_sequences(["a", "e"], [[5, 6], [7]], [[20, 21, 22], []]))
    engine.run({"task": "rescore", "input": str(path), "output": str(tmp_path / "r.safetensors"), "sampling": SAMPLING})
    engine.close()
    out = read_sequences(tmp_path / "r.safetensors")
    assert out.columns["logprobs"].tolist() == [np.float32(logprob(t, 2 + i)) for i, t in enumerate([20, 21, 22])]
    assert out.columns["topk_ids"].tolist() == [[1]] * 3


def test_rescore_at_another_temperature_is_refused_with_its_reason(engine, prompts, tmp_path):
    with pytest.raises(UnsupportedError, match=r"ignore temperature 0\.7"):
        engine.run({"task": "rescore", "input": prompts, "output": "x", "sampling": {**SAMPLING, "temperature": 0.7}})


@pytest.mark.parametrize("task", ["force", "weights", "reload", "decode_text", "score"])
def test_what_a_server_can_not_do_is_unsupported_with_a_reason(engine, task):
    assert task not in engine.capabilities
    with pytest.raises(UnsupportedError, match="can't do"):
        engine.run({"task": task})


def test_at_most_the_given_number_of_requests_is_in_flight(server, tmp_path):
    server.delay = 0.05
    many = write_sequences(tmp_path / "m", build_sequences([str(i) for i in range(12)], [[i + 1] for i in range(12)]))
    engine = start(spec(server, concurrency=3), log=tmp_path / "x.log")
    generate(engine, str(many), tmp_path)
    assert server.most_in_flight == 3
    server.most_in_flight = 0
    generate(engine, str(many), tmp_path, batch=1)
    engine.close()
    assert server.most_in_flight == 1


def test_progress_counts_samples(engine, prompts, tmp_path):
    seen = []
    task = {"task": "generate", "id": "g", "input": prompts, "output": str(tmp_path / "o"), "sampling": SAMPLING}
    threads = set()
    engine.run(task, lambda p: (seen.append(p), threads.add(threading.current_thread())))
    assert threads == {threading.current_thread()}
    assert [(p.task, p.done, p.total) for p in seen] == [("g", i, 4) for i in (1, 2, 3, 4)]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again_after_the_time_it_names(engine, server, prompts, tmp_path, status):
    server.lies["/v1/completions"] = lambda b, a, n: (status, {"Retry-After": "0"}, b"busy") if n < 3 else None
    begin = time.monotonic()
    _, out = generate(engine, prompts, tmp_path)
    assert len(out.sample_ids) == 4
    assert time.monotonic() - begin < 1.0
    assert sum(p == "/v1/completions" for p, _, _ in server.requests) == 12


def test_a_server_that_stays_busy_is_an_error_with_its_words(engine, server, prompts, tmp_path):
    server.lies["/v1/completions"] = lambda b, a, n: (
        503,
        {"Retry-After": "0"},
        b'{"error": {"message": "overloaded"}}',
    )
    with pytest.raises(EngineError, match=r"HTTP 503.*overloaded"):
        generate(engine, prompts, tmp_path)


def test_a_refused_request_is_not_repeated(engine, server, prompts, tmp_path):
    server.lies["/v1/completions"] = lambda b, a, n: (400, {}, b'{"error": {"message": "too many tokens"}}')
    with pytest.raises(EngineError, match="too many tokens"):
        generate(engine, prompts, tmp_path, batch=1)
    assert sum(p == "/v1/completions" for p, _, _ in server.requests) == 1


def test_a_dead_server_is_a_clear_error(server, tmp_path):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(EngineError, match="no answer from the server") as error:
        start(spec(server), log=tmp_path / "x.log")
    assert error.value.exit_code == 2
    assert error.value.value.startswith(server.url)
    assert "args.url" in error.value.hint


def test_a_server_that_dies_in_between_is_a_clear_error(server, prompts, tmp_path):
    engine = start(spec(server, retries=0), log=tmp_path / "x.log")
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(EngineError, match="no answer from the server"):
        generate(engine, prompts, tmp_path)
    engine.close()


def test_a_stuck_server_runs_into_the_time_limit_of_a_request(server, prompts, tmp_path):
    engine = start(spec(server, retries=0, timeout=0.3), log=tmp_path / "x.log")
    server.delay = 2.0
    with pytest.raises(EngineError, match="no answer in time"):
        generate(engine, prompts, tmp_path)
    engine.close()


def test_cancel_ends_a_waiting_request(server, prompts, tmp_path):
    engine = start(spec(server), log=tmp_path / "x.log")
    server.delay = 3.0
    threading.Timer(0.2, engine.cancel).start()
    begin = time.monotonic()
    with pytest.raises(CancelledError):
        generate(engine, prompts, tmp_path)
    engine.close()
    assert time.monotonic() - begin < 2.0


def test_a_refused_key_names_the_way_to_give_one(server, tmp_path, monkeypatch):
    server.lies["/v1/models"] = lambda b, a, n: (401, {}, b'{"error": "Unauthorized"}')
    with pytest.raises(InputError, match="HTTP 401") as error:
        start(spec(server), log=tmp_path / "x.log")
    assert "api_key_env" in error.value.hint
    server.lies.clear()
    monkeypatch.setenv("MY_KEY", "secret-1")
    start(spec(server, api_key_env="MY_KEY"), log=tmp_path / "x.log").close()
    assert server.requests[-1][2]["Authorization"] == "Bearer secret-1"


def test_a_model_that_is_not_served_is_named_with_those_that_are(server, tmp_path):
    with pytest.raises(InputError, match="does not serve model 'large'") as error:
        start(spec(server, model="large"), log=tmp_path / "x.log")
    assert error.value.value == ["tiny"]


def test_an_address_without_the_api_is_an_input_error(server, tmp_path):
    server.lies["/v1/models"] = lambda b, a, n: (404, {}, b"nothing here")
    with pytest.raises(InputError, match="HTTP 404"):
        start(spec(server), log=tmp_path / "x.log")


def change(**fields):
    def lie(_body, answer, _attempt):
        answer["choices"][0] |= fields
        return 200, {}, json.dumps(answer).encode()

    return lie


LOGPROBS_OF_TEXT = {"tokens": ["The", "end"], "token_logprobs": [-1.0, -2.0], "top_logprobs": None}


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (change(token_ids=None, logprobs=None), "no token ids"),
        (change(token_ids=None, logprobs=LOGPROBS_OF_TEXT), "no token ids"),
        (change(logprobs=None), "no log-probabilities"),
        (change(finish_reason="abort"), "gave up"),
        (change(token_ids=[1, 2, 3, 4, 5, 6, 7]), "log-probabilities for 7 tokens"),
        (change(token_ids=["1"]), "no token ids"),
        (change(token_ids=[-1]), "no token ids"),
        (change(token_ids=[2**63], logprobs={"token_logprobs": [-1.0]}), "more than 64 bits"),
        (change(token_ids=None, logprobs={"tokens": ["token_id:" + "9" * 5000]}), "no token ids"),
        (lambda b, a, n: (200, {"content-encoding": "gzip"}, b"not gzip"), "can't be decompressed"),
        (change(prompt_token_ids=[1, 5, 6, 7]), "changed the prompt"),
        (change(prompt_token_ids=None), None),
        (lambda b, a, n: (200, {}, b'{"choices": []}'), "no single choice"),
        (lambda b, a, n: (200, {}, b'["x"'), "no JSON"),
        (lambda b, a, n: (200, {}, b"[" * 200_000), "no JSON"),
        (lambda b, a, n: (200, {}, b"<html>login</html>"), "no JSON"),
        (lambda b, a, n: (302, {"Location": "/elsewhere"}, b""), "HTTP 302"),
    ],
)
def test_an_answer_that_can_not_be_compared_is_an_error(engine, server, prompts, tmp_path, lie, words):
    server.lies["/v1/completions"] = lie
    if words is None:
        assert generate(engine, prompts, tmp_path)
        return
    with pytest.raises((EngineError, InputError), match=words) as error:
        generate(engine, prompts, tmp_path)
    assert error.value.hint
    assert not (tmp_path / "out.safetensors").exists()


def test_a_number_beyond_every_float_is_infinite(engine, server, prompts, tmp_path):
    server.lies["/v1/completions"] = change(token_ids=[1], logprobs={"token_logprobs": [-(10**400)]})
    _, found = generate(engine, prompts, tmp_path)
    assert np.isneginf(found.columns["logprobs"]).all()


def test_a_model_name_that_can_not_be_sent_back_is_no_model(server, tmp_path):
    server.models = [{"id": "tiny\ud800"}]
    with pytest.raises(InputError, match="lists no model"):
        start(spec(server), log=tmp_path / "x.log")


def test_a_server_that_does_not_score_prompts_can_not_rescore_but_is_no_failure(engine, server, prompts, tmp_path):
    server.lies["/v1/completions"] = lambda b, a, n: (
        change(prompt_logprobs=None)(b, a, n) if "prompt_logprobs" in b else None
    )
    generate(engine, prompts, tmp_path)
    task = {"task": "rescore", "input": str(tmp_path / "out.safetensors"), "output": str(tmp_path / "again")}
    with pytest.raises(UnsupportedError, match="no prompt_logprobs"):
        engine.run({**task, "sampling": SAMPLING})


def test_rescoring_leaves_out_what_does_not_fit_beside_the_token_that_a_server_makes(server, tmp_path):
    server.models = [{"id": "tiny", "max_model_len": 6}]
    engine = start(spec(server), log=tmp_path / "x.log")
    given = build_sequences(["a", "b", "c"], [[5, 6], [5, 6], [5, 6, 7, 8, 9, 10]], [[1, 2, 3], [1, 2, 3, 4], [1]])
    source = write_sequences(tmp_path / "in.safetensors", given)
    output = tmp_path / "out.safetensors"
    data = engine.run({"task": "rescore", "input": str(source), "output": str(output), "sampling": SAMPLING}).data
    engine.close()
    found = read_sequences(output)
    assert data["beyond_max_model_len"] == 2
    assert found.columns["logprobs_null"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert found.response_ids.tolist() == [1, 2, 3, 1, 2, 3, 4, 1]
    assert all(len(body["prompt"]) <= 5 for path, body, _ in server.requests if path == "/v1/completions")


def test_a_prompt_count_that_differs_is_an_error(engine, server, prompts, tmp_path):
    def lie(body, answer, _):
        del answer["choices"][0]["prompt_token_ids"]
        answer["usage"]["prompt_tokens"] += 1
        return 200, {}, json.dumps(answer).encode()

    server.lies["/v1/completions"] = lie
    with pytest.raises(EngineError, match="prompt tokens where"):
        generate(engine, prompts, tmp_path)


def test_an_answer_that_is_too_large_is_not_read_to_its_end(server, prompts, tmp_path):
    engine = start(spec(server, max_bytes=10_000), log=tmp_path / "x.log")
    server.lies["/v1/completions"] = lambda b, a, n: (200, {}, b" " * 50_000)
    with pytest.raises(EngineError, match="more than 10000 bytes"):
        generate(engine, prompts, tmp_path)
    engine.close()


def test_ids_are_read_from_placeholders_where_the_server_gives_no_token_ids(engine, server, prompts, tmp_path):
    server.lies["/v1/completions"] = change(token_ids=None)
    _, out = generate(engine, prompts, tmp_path)
    assert out.response(1).tolist() == [8, 11]


def test_an_empty_response_is_a_response(engine, server, prompts, tmp_path):
    server.lies["/v1/completions"] = change(token_ids=[], logprobs=None)
    _, out = generate(engine, prompts, tmp_path)
    assert out.tokens == 0
    assert len(out.sample_ids) == 4


def test_null_nan_and_clamped_values_keep_their_meaning(engine, server, tmp_path):
    def lie(_body, answer, _):
        answer["choices"][0] |= {"token_ids": [1, 2, 3, 4]}
        answer["choices"][0]["logprobs"] |= {"token_logprobs": [None, math.nan, -9999.0, -0.1], "top_logprobs": None}
        return 200, {}, json.dumps(answer).encode()

    server.lies["/v1/completions"] = lie
    path = write_sequences(tmp_path / "one", build_sequences(["a"], [[1]]))
    result, out = generate(engine, str(path), tmp_path)
    values, null = out.columns["logprobs"], out.columns["logprobs_null"]
    assert null.tolist() == [1, 0, 0, 0]
    assert math.isnan(values[1])
    assert values[2] == -math.inf
    assert result.data["fp32_exact"] is False  # -0.1 is no number of fp32


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_the_logprobs_mode_is_found_by_trying(engine, server, tmp_path, mode):
    server.mode, server.top = mode, -0.25
    engine.run({"task": "fingerprint", "output": str(tmp_path / "f.json")})
    found = json.loads((tmp_path / "f.json").read_text())
    assert found["effective"]["logprobs_mode"] == f"{mode}_logprobs"
    assert found["effective"]["max_model_len"] == 99
    assert found["engine"]["version"] == "0.32.0"


def test_a_certain_token_does_not_tell_the_logprobs_mode(engine, server, tmp_path):
    server.top = -0.001
    engine.run({"task": "fingerprint", "output": str(tmp_path / "f.json")})
    found = json.loads((tmp_path / "f.json").read_text())["effective"]
    assert found["logprobs_mode"] is None
    assert "undecided" in found["logprobs_mode_how"]


@pytest.mark.parametrize("chat", [False, True])
def test_text_is_tokenised_by_the_server(engine, tmp_path, chat):
    engine.run({"task": "tokenize", "texts": ["ab", "c"], "chat": chat, "output": str(tmp_path / "p")})
    out = read_sequences(tmp_path / "p")
    end = [33] if chat else []
    assert [out.prompt(i).tolist() for i in range(2)] == [[97, 98, *end], [99, *end]]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"ulr": "x"}, "unknown argument `ulr`"),
        ({"url": "ftp://x"}, "no http address"),
        ({"url": "http://u:p@127.0.0.1:1"}, "password"),
        ({"api_key": "secret"}, "does not belong"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "not set"),
        ({"concurrency": 0}, "above 0"),
        ({"concurrency": "4"}, "wrong type"),
    ],
)
def test_bad_arguments_are_refused_before_any_request(server, tmp_path, args, words):
    with pytest.raises(InputError, match=words) as error:
        start(spec(server, **args), log=tmp_path / "x.log")
    assert "secret" not in str(error.value.as_dict())
    assert server.requests == []


def test_modules_and_env_can_not_reach_a_server(server, tmp_path):
    with pytest.raises(InputError, match="can't reach a running server"):
        start(spec(server, modules=["/x.py"]), log=tmp_path / "x.log")


def test_retry_after_is_read_as_seconds_and_as_a_date():
    class Headers(dict):
        pass

    assert _retry_after(Headers({"retry-after": "3"})) == 3.0
    assert _retry_after(Headers({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}), now=lambda: 70.0) == 30.0
    assert _retry_after(Headers({"retry-after": "soon"})) is None
    assert _retry_after(Headers()) is None
