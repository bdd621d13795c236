# SPDX-License-Identifier: Apache-2.0
"""The same tokens from a real `lynx serve`, however they are computed: one colocated engine, one
request at a time, against a prefill and a decode daemon, eight requests at once, with and without
speculation. Standard library only: scripts/gpu_check runs it on bare machines."""

import json
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

PROMPT_TOKENS = (1, 17, 64, 65, 200, 320, 700, 1500)
MAX_TOKENS = 24
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
WAYS = {  # the first is what the others must equal; then how many requests at once
    "colocated, alone": (["--colocated"], 1),
    "colocated, eight at once": (["--colocated"], 8),
    "disaggregated, speculation": ([], 8),
    "disaggregated, no speculation": (["--speculation", "off"], 8),
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`lynx serve ARGS` on a free port, up when the block begins and gone when it ends."""

    def __init__(self, lynx, args, deadline, env=None):
        self.port = free_port()
        self.command = [lynx, "serve", "--port", str(self.port), *map(str, args)]
        self.deadline = deadline
        self.env = env
        self.log = tempfile.NamedTemporaryFile("w+", prefix="lynx-serve-", suffix=".log")

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, env=self.env)
        try:
            while not re.search(r"^ready: ", self.output(), re.M):
                if self.process.poll() is not None:
                    raise RuntimeError("lynx serve ended: " + self.output()[-2000:])
                if time.monotonic() > self.deadline:
                    raise TimeoutError("lynx serve is not ready: " + self.output()[-2000:])
                time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return False

    def output(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        left = max(1, self.deadline - time.monotonic())
        with urllib.request.urlopen(request, timeout=left) as response:
            return json.load(response)

    def complete(self, job):
        prompt, options = job
        answer = self.post("/v1/completions", {
            "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True,
            "ignore_eos": True, "lynx": {"timeline": True}, **options})
        return answer["choices"][0]["token_ids"], answer["usage"]["lynx"]


def make_jobs(server, text):
    """Greedy and sampled requests over prompts of many lengths, as token ids."""
    ids = server.post("/tokenize", {"prompt": text})["tokens"]
    greedy = [ids[17 * i:17 * i + n] for i, n in enumerate(PROMPT_TOKENS)]
    sampled = [ids[17 * i + 5:17 * i + 5 + n] for i, n in enumerate(PROMPT_TOKENS)]  # none is cached
    return [(p, {}) for p in greedy] + [(p, {**SAMPLED, "seed": sum(p)}) for p in sampled]


def first_difference(want, got):
    for job, (w, g) in enumerate(zip(want, got)):
        if w != g:
            step = next((i for i, (a, b) in enumerate(zip(w, g)) if a != b), min(len(w), len(g)))
            return f"request {job}, token {step}: {g[step:step + 1]}, want {w[step:step + 1]}"
    return None


def run(lynx, model, text, seconds, device_args=("--device", "cuda"), env=None):
    """{"ways": {way: {"equal", "drafted", "handoffs"} or {"error"}}, "passed": bool}."""
    deadline = time.monotonic() + seconds
    report, jobs, want = {}, None, None
    for way, (args, at_once) in WAYS.items():
        try:
            if time.monotonic() > deadline:
                raise TimeoutError("no time was left")
            with Server(lynx, ["--model", model, *device_args, *args], deadline, env) as server:
                jobs = jobs or make_jobs(server, text)
                with ThreadPoolExecutor(at_once) as pool:
                    answers = list(pool.map(server.complete, jobs))
        except Exception as error:  # the other ways may still say something
            report[way] = {"error": f"{type(error).__name__}: {error}"}
            continue
        got = [ids for ids, _ in answers]
        want = want or got
        difference = first_difference(want, got)
        report[way] = {"equal": difference is None, "requests": len(got),
                       "drafted": sum(t["drafted"] for _, t in answers),
                       "handoffs": sum(t["handoffs"] for _, t in answers)}
        if difference:
            report[way]["difference"] = difference
    passed = all(r.get("equal") for r in report.values())
    return {"passed": passed, "ways": report}
