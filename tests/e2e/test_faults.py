# SPDX-License-Identifier: Apache-2.0
"""Daemons that die and clients that leave: no hang, no leaked block, and the same tokens."""

import contextlib
import datetime
import json
import math
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cluster import Cluster, LYNX, MODEL, free_port, own_prompts


@pytest.fixture(scope="module")
def cluster():
    with Cluster("--threads", 1) as c:
        c.prompts = own_prompts(c.http)
        yield c


def in_background(function, *args, **kwargs):
    result = {}

    def run():
        try:
            result["value"] = function(*args, **kwargs)
        except Exception as e:  # handed to the caller
            result["error"] = e

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


def usable(cluster, prompt, want, timeout=60):
    """The cluster answers again, with the right tokens."""
    end = time.time() + timeout
    while True:
        try:
            assert cluster.complete(prompt, 16)[0] == want
            return
        except (AssertionError, httpx.HTTPError):
            if time.time() > end:
                raise
            time.sleep(0.3)


def received_bytes(cluster):
    return sum(value for name, value in cluster.metrics().items()
               if name.startswith("lynx:kv_transfer_received_bytes_total{"))


def sending_daemon(cluster, received_before, timeout=60):
    """The prefill daemon of the one hand-off under way, some of which has arrived."""
    end = time.time() + timeout
    while time.time() < end:
        held = {}  # blocks of the job, by engine
        for name, value in cluster.metrics().items():
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            if name.startswith("lynx:kv_blocks{") and labels["role"] == "prefill":
                index = int(labels["engine"])
                busy = value if labels["state"] in ("request", "transfer") else 0
                held[index] = held.get(index, 0) + busy
        for i, index in enumerate(sorted(held)):
            if held[index] > 0 and received_bytes(cluster) > received_before:
                return f"prefill{i}"
        time.sleep(0.02)
    raise AssertionError("no hand-off is under way")


def seconds_until_noticed(cluster, at, timeout=30):
    """From a time to when the decode daemon lost a peer, by its log."""
    end = time.time() + timeout
    while time.time() < end:
        for line in cluster.output().splitlines():
            found = re.search(r"(\S+)Z warning \[decode0\] transport: lost peer", line)
            if found:
                when = datetime.datetime.fromisoformat(found[1] + "+00:00").timestamp()
                if when >= at:
                    return when - at
        time.sleep(0.1)
    raise AssertionError(f"not noticed:\n{cluster.output()[-3000:]}")


def hurt_mid_transfer(cluster, how, salt):
    """Asks for a long prompt and hurts its prefill daemon while the hand-off is under way. Gives
    the daemon's name, the tokens that were wanted and the answer."""
    prompt = cluster.prompts[-1]
    want = cluster.complete(prompt, 16, cache_salt=salt + "a")[0]
    time.sleep(1)  # the gateway's figures are up to a second old: not the last hand-off's
    cluster.wait_until_idle()
    received = received_bytes(cluster)
    thread, result = in_background(cluster.complete, prompt, 16, cache_salt=salt + "b")
    name = sending_daemon(cluster, received)
    pid, at = cluster.pid(name), time.time()
    os.kill(pid, how)
    try:
        print(f"\n{how.name} of {name}: noticed after {seconds_until_noticed(cluster, at):.2f} s")
        thread.join(120)
    finally:
        if how == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    assert not thread.is_alive()
    assert "value" in result, result
    return name, want, result["value"]


def test_prefill_daemon_killed_mid_transfer(cluster):
    """There is no other: the answer waits until it is back."""
    name, want, (got, answer) = hurt_mid_transfer(cluster, signal.SIGKILL, "one")
    assert got == want
    assert answer["usage"]["lynx"]["handoffs"] > 1
    cluster.wait_for_line(rf"^{name}: ready", count=2)
    usable(cluster, cluster.prompts[-1], want)
    cluster.wait_until_idle()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_prefill_daemon_takes_over(how):
    with Cluster("--threads", 1, "--prefill", 2) as cluster:
        cluster.prompts = own_prompts(cluster.http)
        _, want, (got, answer) = hurt_mid_transfer(cluster, how, how.name)
        assert got == want
        assert answer["usage"]["lynx"]["handoffs"] > 1
        cluster.wait_until_idle()


@contextlib.contextmanager
def deaf_prefill_daemon(num_sound):
    """A client of a cluster whose first prefill daemon hears RPCs, but no KV transport; the other
    `num_sound` ones are sound."""
    with tempfile.TemporaryDirectory() as directory:
        gateway, decode, *prefill = (free_port() for _ in range(3 + num_sound))
        config = os.path.join(directory, "cluster.yaml")
        urls = ", ".join(f"'127.0.0.1:{port}'" for port in prefill)
        with open(config, "w") as f:
            f.write(f"port: {gateway}\nmodel: {MODEL}\nthreads: 1\n"
                    f"context_servers: {{num_instances: {len(prefill)}, urls: [{urls}]}}\n"
                    f"generation_servers: {{urls: ['127.0.0.1:{decode}']}}\n")
        log = open(os.path.join(directory, "log"), "w+")
        processes = []

        def start(role, *args, **environment):
            processes.append(subprocess.Popen([LYNX, role, "--config", config, *args], stdout=log,
                                              stderr=log, env={**os.environ, **environment}))

        try:
            start("prefill", "--index", "0", UCX_TLS="self")
            for index in range(1, len(prefill)):
                start("prefill", "--index", str(index))
            start("decode")
            start("gateway")
            with httpx.Client(base_url=f"http://127.0.0.1:{gateway}", timeout=120) as http:
                end = time.time() + 60
                while True:
                    try:
                        if http.get("/ready").status_code == 200:
                            break
                    except httpx.HTTPError:
                        pass
                    assert time.time() < end, open(log.name).read()[-3000:]
                    time.sleep(0.1)
                yield http
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(30)


def test_no_attempt_to_hand_over_succeeds():
    """The daemons' KV transports cannot reach each other, though their RPCs do."""
    with deaf_prefill_daemon(num_sound=0) as http:
        response = http.post("/v1/completions",
                             json={"prompt": own_prompts(http)[14], "max_tokens": 4})
        assert response.status_code == 502, response.text
        error = response.json()["error"]
        print(json.dumps(error))
        message = error.pop("message")
        assert message.startswith("hand-off 3 of 3 failed: "), message
        assert error == {"type": "upstream_error", "param": None, "code": "kv_transfer_failed"}


def test_a_request_goes_where_it_has_not_failed():
    """The deaf daemon's attempts fail soon, so that it always has the fewest open ones."""
    with deaf_prefill_daemon(num_sound=1) as http:
        prompt = own_prompts(http)[14]

        def ask(i):
            return http.post("/v1/completions", json={
                "prompt": prompt, "max_tokens": 4, "temperature": 0, "cache_salt": str(i)})

        with ThreadPoolExecutor(6) as pool:
            responses = list(pool.map(ask, range(12)))
        assert [r.status_code for r in responses] == [200] * 12, [r.text for r in responses]
        assert len({r.json()["choices"][0]["text"] for r in responses}) == 1


def test_a_daemon_whose_hand_offs_fail_is_passed_over():
    """It is tried again after 2 s, 4 s and so on, by one request each time."""
    with deaf_prefill_daemon(num_sound=1) as http:
        prompt = own_prompts(http)[14]
        num_attempts, begin = [], time.time()
        for i in range(12):
            response = http.post("/v1/completions", json={
                "prompt": prompt, "max_tokens": 2, "cache_salt": str(i),
                "lynx": {"timeline": True}})
            assert response.status_code == 200, response.text
            num_attempts.append(response.json()["usage"]["lynx"]["handoffs"])
        probes = math.log2(1 + (time.time() - begin) / 2)
        print(f"\nattempts {num_attempts} in {time.time() - begin:.1f} s")
        num_failed = sum(num_attempts) - len(num_attempts)
        assert 1 <= num_failed <= 1 + probes
        time.sleep(1)  # the gateway's figures are up to a second old
        metrics = http.get("/metrics").text
        ejections = re.findall(r'lynx:prefill_ejections_total\{.*role="decode".*\} (\S+)', metrics)
        assert [float(e) for e in ejections] == [num_failed], metrics


def test_decode_daemon_killed_mid_stream(cluster):
    prompt = cluster.prompts[10]
    want = cluster.complete(prompt, 16)[0]
    events = []
    with cluster.http.stream("POST", "/v1/completions", json={
            "prompt": prompt, "max_tokens": 2000, "ignore_eos": True, "stream": True}) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line:
                events.append(line)
            if len(events) == 5:
                os.kill(cluster.pid("decode0"), signal.SIGKILL)
    assert events[-1] == "data: [DONE]"
    assert '"error"' in events[-2], events[-2]
    cluster.wait_for_line(r"^decode0: ready", count=2)
    usable(cluster, prompt, want)
    cluster.wait_until_idle()


@pytest.mark.parametrize("daemon", ["prefill0", "decode0"])
def test_daemon_stopped_and_continued(cluster, daemon):
    """Longer than a peer is waited for: the other side gives the connection up meanwhile."""
    prompt = cluster.prompts[-2]
    want = cluster.complete(prompt, 16, cache_salt=daemon)[0]
    thread, result = in_background(cluster.complete, prompt, 16, cache_salt=daemon + "2")
    time.sleep(0.3)
    os.kill(cluster.pid(daemon), signal.SIGSTOP)
    time.sleep(3)
    os.kill(cluster.pid(daemon), signal.SIGCONT)
    thread.join(90)
    assert not thread.is_alive()
    assert "value" in result and result["value"][0] == want, result
    assert cluster.complete(prompt, 16, cache_salt=daemon + "3")[0] == want
    cluster.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0.02, 0.3, 1.2])
def test_client_leaves(cluster, stream, after):
    with pytest.raises(httpx.TimeoutException):
        body = {"prompt": cluster.prompts[-1], "max_tokens": 4000, "ignore_eos": True,
                "stream": stream, "cache_salt": f"gone-{after}-{stream}"}
        with httpx.Client(base_url=cluster.url, timeout=after) as client:
            if not stream:
                client.post("/v1/completions", json=body)
            with client.stream("POST", "/v1/completions", json=body) as response:
                begin = time.time()
                for _ in response.iter_raw():
                    if time.time() - begin > after:
                        raise httpx.ReadTimeout("left on purpose")
    cluster.wait_until_idle(timeout=15)


def test_two_hundred_requests_with_cancellations(cluster):
    rng = random.Random(5)
    prompts = [p for p in cluster.prompts if len(p) <= 700]
    want = {i: cluster.complete(p, 12)[0] for i, p in enumerate(prompts)}

    def one(k):
        i = k % len(prompts)
        if rng.random() < 0.3:
            try:
                with httpx.Client(base_url=cluster.url, timeout=rng.uniform(0.01, 0.6)) as client:
                    client.post("/v1/completions", json={"prompt": prompts[i], "max_tokens": 500,
                                                         "ignore_eos": True})
            except httpx.TimeoutException:
                return None
            return None
        return i, cluster.complete(prompts[i], 12)[0]

    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(one, range(200)):
            if result:
                assert result[1] == want[result[0]]
    cluster.wait_until_idle()
