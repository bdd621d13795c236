# SPDX-License-Identifier: Apache-2.0
"""Gateway, prefill and decode on three hosts (network namespaces) with shaped links."""

import ctypes
import datetime
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

import httpx
import pytest

from cluster import Cluster, LYNX, MODEL, SHARED, own_prompts

NETLAB = os.path.join(SHARED, "tools/netlab")
PREFIX = "lynxe2e"
GATEWAY = "http://127.0.0.1:8000"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not os.path.exists(NETLAB), reason="shared/tools/netlab is not here"),
]


def in_host(name, function):
    """Runs function() in a thread that lives in the network namespace of a host."""
    result = {}

    def run():
        try:
            fd = os.open(f"/var/run/netns/{PREFIX}-{name}", os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            os.close(fd)
            result["value"] = function()
        except BaseException as e:  # handed to the caller
            result["error"] = e

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in result:
        raise result["error"]
    return result["value"]


class Lab:
    """Hosts at a link rate, one daemon on each: a gateway, a decode and some prefill daemons."""

    def __init__(self, rate, *flags, num_prefill=1):
        self.rate = rate
        self.flags = flags
        self.prefill = [f"p{i}" for i in range(num_prefill)]

    def netlab(self, *args):
        subprocess.run([NETLAB, *args], check=True, capture_output=True,
                       env={**os.environ, "NETLAB_PREFIX": PREFIX})

    def __enter__(self):
        self.processes = []
        self.directory = tempfile.TemporaryDirectory()
        config = os.path.join(self.directory.name, "cluster.yaml")
        with open(config, "w") as f:
            f.write(f"hostname: 0.0.0.0\nport: 8000\nmodel: {MODEL}\nthreads: 1\n"
                    f"context_servers: {{num_instances: {len(self.prefill)}, "
                    f"urls: {[p + ':9100' for p in self.prefill]}}}\n"
                    "generation_servers: {urls: ['d0:9200']}\n")
        self.netlab("up", "--prefill", str(len(self.prefill)), "--decode", "1", "--rate", self.rate,
                    "--delay", "0.2ms")
        try:
            roles = [(p, "prefill") for p in self.prefill] + [("d0", "decode"), ("gw", "gateway")]
            for host, role in roles:
                log = open(os.path.join(self.directory.name, host + ".log"), "w")
                flags = [] if role == "gateway" else list(self.flags)
                if role == "prefill":
                    flags += ["--index", host[1:]]
                self.processes.append(subprocess.Popen(
                    [NETLAB, "exec", host, LYNX, role, "--config", config, *flags], stdout=log,
                    stderr=log, env={**os.environ, "NETLAB_PREFIX": PREFIX}))
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_ready(self, timeout=60):
        end = time.time() + timeout
        while True:
            try:
                if in_host("gw", lambda: httpx.get(GATEWAY + "/ready")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            assert time.time() < end, self.logs()
            time.sleep(0.1)

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.directory.name)):
            with open(os.path.join(self.directory.name, name)) as f:
                text += f"--- {name}\n{f.read()[-3000:]}"
        return text

    def sent_bytes(self, host):
        """What has left a host since its cable was made."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(subprocess.run(["ip", "netns", "exec", f"{PREFIX}-{host}", "cat", path],
                                  check=True, capture_output=True).stdout)

    def wait_until_sending(self, num_bytes, timeout=60):
        """The first prefill host that sends so many bytes more."""
        before = {p: self.sent_bytes(p) for p in self.prefill}
        end = time.time() + timeout
        while time.time() < end:
            for p in self.prefill:
                if self.sent_bytes(p) - before[p] > num_bytes:
                    return p
            time.sleep(0.02)
        raise AssertionError(self.logs())

    def seconds_until_noticed(self, at, timeout=30):
        """From a time to when the decode daemon lost a peer, by its log."""
        end = time.time() + timeout
        while time.time() < end:
            with open(os.path.join(self.directory.name, "d0.log")) as f:
                for found in re.findall(r"(\S+)Z warning \[\S+\] transport: lost peer", f.read()):
                    when = datetime.datetime.fromisoformat(found + "+00:00").timestamp()
                    if when >= at:
                        return when - at
            time.sleep(0.1)
        raise AssertionError(self.logs())

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        self.netlab("down")
        self.directory.cleanup()
        return False

    def complete(self, prompt, max_tokens=32, **options):
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "lynx": {"timeline": True}, **options}
        response = in_host("gw", lambda: httpx.post(GATEWAY + "/v1/completions", json=body,
                                                    timeout=120))
        answer = response.json()
        if response.status_code != 200:
            return None, answer
        return answer["choices"][0]["token_ids"], answer["usage"]["lynx"]


def options_of(i):
    return {} if i % 2 == 0 else {"temperature": 0.8, "seed": i}


@pytest.fixture(scope="module")
def expected():
    with Cluster("--colocated", "--threads", 2) as c:
        prompts = [p for p in own_prompts(c.http) if 129 <= len(p) <= 1500]
        prompts += [p[7:] for p in prompts]
        return [(p, options_of(i), c.complete(p, 64, **options_of(i))[0])
                for i, p in enumerate(prompts)]


def test_three_hosts_at_one_gigabit(expected):
    with Lab("1gbit") as lab:
        for prompt, options, want in expected:
            got, timeline = lab.complete(prompt, 64, **options)
            assert got == want
            assert timeline["handoffs"] == (1 if len(prompt) > 128 else 0)


def test_slow_link_drafts_and_stays_exact(expected):
    drafted = accepted = 0
    with Lab("50mbit", "--verify", "residual") as lab:
        for prompt, options, want in expected:
            got, timeline = lab.complete(prompt, 64, **options)
            assert got == want
            assert timeline["drafted"] >= timeline["accepted"]
            drafted += timeline["drafted"]
            accepted += timeline["accepted"]
            if timeline["drafted"] > 0:
                events = timeline["events_ms"]
                assert events["anchor_landed"] <= events["first_draft"] <= events["target_landed"]
    assert drafted > 50
    assert 0 < accepted < drafted, f"drafted {drafted}, accepted {accepted}"


@pytest.mark.parametrize("mode", ["source", "hold", "auto"])
def test_slow_link_and_the_prefill_daemon_vouches(expected, mode):
    chosen = [e for e in expected if len(e[0]) > 500][::3]
    by_source = rounds = 0
    with Lab("30mbit", "--verify", mode) as lab:
        for prompt, options, want in chosen:
            got, timeline = lab.complete(prompt, 64, **options)
            assert got == want
            assert timeline["verify"] == ("hold" if mode == "hold" else "source")
            by_source += timeline["verified_by_source"]
            rounds += timeline["verify_rounds"]
    assert by_source > 30
    assert mode == "auto" or (rounds > 0) == (mode == "source")


def test_anchors_overtake_residuals(expected):
    first = next(p for p, _, _ in expected if len(p) == 700)
    second = next(p for p, _, _ in expected if len(p) == 320)
    with Lab("10mbit", "--verify", "residual") as lab:
        timelines = {}

        def ask(name, prompt):
            begin = time.time()
            _, timeline = lab.complete(prompt, 4)
            timelines[name] = {k: begin + v / 1e3 for k, v in timeline["events_ms"].items()}

        a = threading.Thread(target=ask, args=("first", first))
        b = threading.Thread(target=ask, args=("second", second))
        a.start()
        time.sleep(0.05)
        b.start()
        a.join()
        b.join()
    assert timelines["second"]["anchor_landed"] < timelines["first"]["residual_landed"], timelines


def test_pulled_cable_never_gives_unverified_text(expected):
    prompt, options, want = next(e for e in expected if len(e[0]) > 1000 and not e[1])
    with Lab("50mbit") as lab:
        result = {}
        thread = threading.Thread(
            target=lambda: result.update(answer=lab.complete(prompt, 64, **options)))
        thread.start()
        time.sleep(1.6)
        lab.netlab("link", "p0", "down")
        thread.join(100)
        assert not thread.is_alive()
        got, answer = result["answer"]
        assert got == want or (got is None and "error" in answer), answer
        lab.netlab("link", "p0", "up")
        lab.wait_ready()
        assert lab.complete(prompt, 64, **options)[0] == want


def test_cable_pulled_mid_transfer_and_another_prefill_daemon_takes_over(expected):
    prompt, options, want = next(e for e in expected if len(e[0]) > 1000 and not e[1])
    with Lab("50mbit", "--verify", "residual", num_prefill=2) as lab:
        result = {}
        thread = threading.Thread(
            target=lambda: result.update(answer=lab.complete(prompt, 64, **options)))
        thread.start()
        host = lab.wait_until_sending(2 << 20)
        at = time.time()
        lab.netlab("link", host, "down")
        print(f"\ncable of {host} pulled: noticed after {lab.seconds_until_noticed(at):.2f} s")
        thread.join(100)
        assert not thread.is_alive()
        got, answer = result["answer"]
        assert got == want, answer
        assert answer["handoffs"] > 1
