# SPDX-License-Identifier: Apache-2.0
"""Daemons that die and clients that leave: no hang, no leaked block, and the same tokens."""

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cluster import Cluster, own_prompts


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


def test_prefill_daemon_killed_mid_transfer(cluster):
    prompt = cluster.prompts[-1]
    want = cluster.complete(prompt, 16, cache_salt="a")[0]
    thread, result = in_background(cluster.complete, prompt, 16, cache_salt="b")
    time.sleep(1.0)
    os.kill(cluster.pid("prefill0"), signal.SIGKILL)
    thread.join(90)
    assert not thread.is_alive()
    if "error" in result:  # refused clearly is allowed, other text is not
        assert isinstance(result["error"], AssertionError) and "error" in str(result["error"])
    else:
        assert result["value"][0] == want
    cluster.wait_for_line(r"^prefill0: ready", count=2)
    usable(cluster, prompt, want)
    cluster.wait_until_idle()


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
