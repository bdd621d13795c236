# SPDX-License-Identifier: Apache-2.0
"""Starts real `lynx` processes for tests and talks to them over HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

import httpx

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LYNX = os.environ.get("LYNX_BINARY", os.path.join(ROOT, "build/release/lynx"))
MODEL = os.environ.get("LYNX_TEST_MODEL",
                       os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
SHARED = os.path.join(ROOT, "..", "shared")
START_TIMEOUT = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """`lynx serve ARGS` on a free port. Use as a context manager."""

    def __init__(self, *args, model=MODEL):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.args = [LYNX, "serve", "--model", model, "--port", str(self.port), *map(str, args)]
        self.log = tempfile.NamedTemporaryFile("w+", prefix="lynx-e2e-", suffix=".log")

    def __enter__(self):
        self.process = subprocess.Popen(self.args, stdout=self.log, stderr=self.log)
        try:
            self.wait_for_line(r"^ready: ")
        except BaseException:
            self.__exit__()
            raise
        self.http = httpx.Client(base_url=self.url, timeout=3600)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return False

    def output(self):
        with open(self.log.name) as f:
            return f.read()

    def wait_for_line(self, pattern, count=1, timeout=START_TIMEOUT):
        end = time.time() + timeout
        while len(re.findall(pattern, self.output(), re.M)) < count:
            if self.process.poll() is not None:
                raise AssertionError(f"lynx serve ended ({self.process.returncode}):\n{self.output()}")
            if time.time() > end:
                raise AssertionError(f"no line {pattern!r}:\n{self.output()}")
            time.sleep(0.05)

    def pid(self, name):
        """The process id of a daemon, of its last start."""
        return int(re.findall(rf"^{name}: starting \(pid (\d+)\)", self.output(), re.M)[-1])

    def complete(self, prompt_ids, max_tokens=32, **options):
        """Token ids and the whole answer of /v1/completions."""
        body = {"prompt": prompt_ids, "max_tokens": max_tokens, "temperature": 0,
                "return_token_ids": True, "ignore_eos": True, "lynx": {"timeline": True}, **options}
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        return answer["choices"][0]["token_ids"], answer

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        values = {}
        for line in self.http.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def blocks(self):
        """{(role, state): number} of the KV pools."""
        found = {}
        for name, value in self.metrics().items():
            if name.startswith("lynx:kv_blocks{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
                key = (labels["role"], labels["state"])
                found[key] = found.get(key, 0) + value
        return found

    def wait_until_idle(self, timeout=40):
        """No block is owned by a request or a transfer on any daemon."""
        end = time.time() + timeout
        while True:
            blocks = self.blocks()
            busy = {k: v for k, v in blocks.items() if k[1] in ("request", "transfer") and v}
            if blocks and not busy:
                return
            assert time.time() < end, f"blocks still owned: {busy}"
            time.sleep(0.2)


def reference(weights="q4_1"):
    """The reference prompts of SmolLM2 with greedy paths; [] when they are not there."""
    path = os.path.join(SHARED, "reference/model", weights + ".jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f]


def own_prompts(http):
    """Prompts of many lengths made from the project's own texts, as token ids."""
    text = ""
    for name in ("LICENSE", "docs/architecture.md", "docs/protocol.md", "docs/numerics.md"):
        with open(os.path.join(ROOT, name)) as f:
            text += f.read()
    ids = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert len(ids) > 4500, len(ids)
    lengths = [1, 2, 15, 16, 17, 63, 64, 65, 80, 127, 128, 129, 200, 256, 257, 320, 511, 700, 1025,
               1500, 4000]
    return [ids[17 * i:17 * i + n] for i, n in enumerate(lengths)]
