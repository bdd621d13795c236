# SPDX-License-Identifier: Apache-2.0
"""The program itself: flags, errors, exit codes, inspect, bench, chat, SIGTERM."""

import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from cluster import Cluster, LYNX, MODEL, ROOT, SHARED


def run(*args, timeout=120, **kwargs):
    return subprocess.run([LYNX, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          **kwargs)


def one_line_error(*args, mentions=()):
    result = run(*args)
    assert result.returncode == 1, result
    lines = [l for l in result.stderr.splitlines() if l]
    assert len(lines) == 1, result.stderr
    for word in mentions:
        assert word in lines[0]
    return lines[0]


def test_help_and_version():
    assert "serve" in run("--help").stdout
    assert run("--version").stdout.startswith("lynx ")
    for command in ("serve", "gateway", "prefill", "decode", "chat", "bench", "inspect"):
        result = run(command, "--help")
        assert result.returncode == 0 and "Usage" in result.stdout


def test_unknown_flag_names_the_nearest():
    result = run("serve", "--prot", "1")
    assert result.returncode == 1 and "did you mean --port" in result.stderr


def test_bad_values_are_one_line():
    one_line_error("serve", "--model", "/nowhere.gguf", mentions=["/nowhere.gguf"])
    one_line_error("serve", "--model", MODEL, "--codec", "zip", mentions=["codec", "planes"])
    one_line_error("serve", "--model", MODEL, "--port", "70000", mentions=["port", "65535"])
    one_line_error("serve", "--config", "/nowhere.yaml", mentions=["/nowhere.yaml"])
    one_line_error("inspect", "/nowhere", mentions=["/nowhere"])


def test_device_cuda_says_what_is_missing(tmp_path):
    needed = subprocess.run(["ldd", LYNX], capture_output=True, text=True).stdout
    assert "libcuda" not in needed and "libcublas" not in needed
    one_line_error("serve", "--model", MODEL, "--device", "cuda", "--compute", "f32",
                   mentions=["compute: f32"])
    alone = shutil.copy(LYNX, tmp_path / "lynx")  # as where it was built without nvcc
    result = subprocess.run([alone, "serve", "--model", MODEL, "--device", "cuda"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "device: cuda: " in result.stderr and "liblynx_cuda.so is not there" in result.stderr
    assert result.stderr.count("\n") == 1
    if not glob.glob("/dev/nvidia[0-9]*"):
        one_line_error("serve", "--model", MODEL, "--device", "cuda", mentions=["device: cuda: "])


def test_gpu_check_says_what_is_missing(tmp_path):
    if glob.glob("/dev/nvidia[0-9]*"):
        pytest.skip("there is a GPU")
    result = subprocess.run([os.path.join(ROOT, "scripts/gpu_check"), "--out", tmp_path / "report"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and not (tmp_path / "report").exists()
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_gpu_check_compares_tokens(monkeypatch):
    """Its equality run, on the CPU."""
    monkeypatch.syspath_prepend(os.path.join(ROOT, "tools"))
    import serve_equality
    monkeypatch.setattr(serve_equality, "PROMPT_TOKENS", (1, 65, 300))
    with open(os.path.join(ROOT, "docs/architecture.md")) as f:
        report = serve_equality.run(LYNX, MODEL, f.read(), 300, ["--threads", "1"])
    assert report["passed"], report
    ways = report["ways"]
    assert ways["disaggregated, speculation"]["handoffs"] > 0
    assert ways["disaggregated, no speculation"]["drafted"] == 0


def test_check_config_checks_everything():
    one_line_error("serve", "--model", MODEL, "--prefill", "0", "--check-config",
                   mentions=["context_servers.num_instances"])
    one_line_error("prefill", "--model", MODEL, "--check-config", mentions=["urls"])
    one_line_error("serve", "--config", "/tmp", "--check-config", mentions=["/tmp"])


def test_check_config_prints_the_effective_configuration():
    result = run("serve", "--model", MODEL, "--max_num_seqs", "7", "--check-config")
    assert result.returncode == 0 and "max_num_seqs: 7" in result.stdout


def malformed():
    path = os.path.join(SHARED, "reference/malformed/cases.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f]


@pytest.mark.parametrize("case", malformed() or [None], ids=lambda c: c["name"] if c else "absent")
def test_malformed_model_is_one_line(case):
    if case is None:
        pytest.skip("the malformed files are not here (shared/reference/malformed)")
    path = os.path.join(SHARED, "reference/malformed", case["path"])
    result = run("inspect", path, timeout=30)
    assert result.returncode == 1, result
    lines = [l for l in result.stderr.splitlines() if l]
    assert len(lines) == 1, result.stderr
    line = lines[0].lower()
    assert case["file"].lower() in line, line
    for words in case["mentions"]:
        assert any(word.lower() in line for word in words), (line, words)


def test_inspect():
    result = run("inspect", MODEL)
    assert result.returncode == 0
    for word in ("llama", "49152", "Q4_1", "planes", "lossless", "int4"):
        assert word in result.stdout


def test_bench_prints_json_lines():
    result = run("bench", "engine", "--model", MODEL, "--threads", 1, "--prefill", 64, "--depth", 0,
                 "--batch", "1,2", "--repeats", 1)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [r["kind"] for r in rows] == ["prefill", "decode", "decode"]
    for row in rows:
        assert row["tok_per_s"] > 0 and row["bound_tok_per_s"] > 0 and row["threads"] == 1
    result = run("bench", "codec", "--codecs", "planes", "--repeats", 1)
    assert {json.loads(l)["kind"] for l in result.stdout.splitlines()} == {"encode", "decode"}


def test_chat_prints_answer_and_timeline():
    with Cluster("--threads", 1) as c:
        result = run("chat", "--url", c.url, "--temperature", 0, "--max-tokens", 16,
                     "What is gravity?")
        assert result.returncode == 0, result.stderr
        assert "ravity" in result.stdout and "first_token" in result.stdout
        assert "drafted" in result.stdout.splitlines()[-1]
        assert run("chat", "--url", c.url, "--model", "other", "hi").returncode == 1


class WrongServer:
    """Answers every connection with the same bytes."""

    def __init__(self, answer):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, args=(answer,), daemon=True)
        self.thread.start()

    def serve(self, answer):
        connection, _ = self.socket.accept()
        connection.recv(65536)
        connection.sendall(answer)
        connection.close()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("answer", [
    b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops",
    STREAM.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"a" * 70000
                   + b"\r\n\r\n"),
    STREAM + b"data: {bad\n\n",
    STREAM + b'data: {"choices":[{"delta":{"content":"cut of',
    STREAM + b'data: {"choices":5}\n\ndata: {"choices":[null]}\n\ndata: {"usage":{"lynx":5}}\n\n',
    STREAM + b'data: {"usage":{"lynx":{"events_ms":[1],"drafted":"x","stage_bytes":3}}}\n\n',
    STREAM + b'data: {"error":{"message":"boom"}}\n\ndata: [DONE]\n\n'])
def test_chat_with_a_wrong_server_is_one_line(answer):
    server = WrongServer(answer)
    one_line_error("chat", "--url", server.url, "hi")


def test_chat_without_a_server():
    line = one_line_error("chat", "--url", "http://127.0.0.1:1", "hi",
                          mentions=["127.0.0.1:1", "refused"])
    assert "/usr/include" not in line
    one_line_error("chat", "--url", "http://127.0.0.1:99999", "hi", mentions=["99999"])


def test_ready_means_ready():
    with Cluster("--threads", 1) as c:
        assert c.http.get("/ready").status_code == 200
        c.complete([1, 2, 3], 1)


def test_port_in_use_is_one_line():
    with Cluster("--threads", 1) as c:
        line = one_line_error("serve", "--model", MODEL, "--port", c.port,
                              mentions=[str(c.port), "in use"])
        assert "cannot listen" in line
        assert c.http.get("/ready").status_code == 200


def test_no_directory_for_temporary_files_is_one_line():
    for directory in ("/nonexistent", "/proc"):
        result = run("serve", "--model", MODEL, "--port", 0,
                     env={**os.environ, "TMPDIR": directory})
        assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
        assert directory in result.stderr or "TMPDIR" in result.stderr


def test_second_sigterm_ends_streams_with_an_error():
    with Cluster("--threads", 1) as c:
        with c.http.stream("POST", "/v1/completions", json={
                "prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": True,
                "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            c.process.send_signal(signal.SIGTERM)
            c.wait_for_line("^stopping")
            c.process.send_signal(signal.SIGTERM)
            rest = [l for l in lines if l]
        assert rest[-1] == "data: [DONE]" and '"error"' in rest[-2]
        c.process.wait(10)
        assert c.process.returncode == 0


def test_other_signals_do_not_break_stopping():
    with Cluster("--threads", 1) as c:
        c.process.send_signal(signal.SIGUSR2)
        time.sleep(0.2)
        c.process.send_signal(signal.SIGTERM)
        c.process.wait(20)
        assert c.process.returncode == 0


def test_sigterm_lets_running_requests_finish():
    with Cluster("--threads", 1) as c:
        with c.http.stream("POST", "/v1/completions", json={
                "prompt": "Once upon a time", "max_tokens": 120, "ignore_eos": True,
                "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            c.process.send_signal(signal.SIGTERM)
            rest = [l for l in lines if l]
        assert rest[-1] == "data: [DONE]" and '"error"' not in "".join(rest)
        c.process.wait(30)
        assert c.process.returncode == 0


def test_no_process_survives_a_killed_supervisor():
    with Cluster("--threads", 1) as c:
        pids = [c.pid(n) for n in ("gateway", "prefill0", "decode0")]
        c.process.kill()
        c.process.wait()
        end = time.time() + 15
        while any(os.path.exists(f"/proc/{p}") and
                  "Z" not in open(f"/proc/{p}/stat").read().split()[2] for p in pids):
            assert time.time() < end
            time.sleep(0.1)
