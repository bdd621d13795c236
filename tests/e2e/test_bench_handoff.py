# SPDX-License-Identifier: Apache-2.0
"""`lynx bench handoff` as a user runs it, and what it leaves behind."""

import json
import os
import signal
import subprocess
import time

import pytest

from cluster import LYNX, MODEL, ROOT

CORPUS = os.path.join(ROOT, "bench/prompts")


def command(*args, codecs="bf16,planes", repeat=2, threads=1):
    return [LYNX, "bench", "handoff", "--model", MODEL, "--corpus", CORPUS, "--prompt-tokens", "512",
            "--codecs", codecs, "--repeat", str(repeat), "--max-tokens", "9", "--busy", "idle",
            "--threads", str(threads), *args]


def namespaces():
    directory = "/var/run/netns"
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [name for name in names if name.startswith("lynxlab-")]


def test_cells_over_loopback(tmp_path):
    output = tmp_path / "cells.jsonl"
    done = subprocess.run(command("--link", "none", "--json", output), capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert output.read_text() == done.stdout
    cells = [json.loads(line) for line in done.stdout.splitlines()]
    assert [cell["codec"] for cell in cells] == ["bf16", "planes"]
    for cell in cells:
        assert cell["n"] == 2 and cell["equal_to_bf16"] == 1 and cell["link_bps"] is None
        assert list(cell["t_verified_s"]) == list(cell["t_provisional_s"]) == ["1", "2", "8"]
        assert cell["split_s"]["encode"] > 0
    assert cells[0]["bytes"]["exact"] == 0 < cells[1]["bytes"]["exact"]
    assert sum(cells[1]["bytes"].values()) < sum(cells[0]["bytes"].values())


def daemons_of(bench):
    """Cores of the bench's daemons by their role, once all three of a disaggregated cluster run."""
    with open(f"/proc/{bench.pid}/task/{bench.pid}/children") as f:
        children = [int(pid) for pid in f.read().split()]
    cores = {}
    for pid in children:
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                cores[f.read().split("\0")[1]] = os.sched_getaffinity(pid)
        except (OSError, IndexError):  # it ends, or has not begun
            continue
    return cores if set(cores) >= {"prefill", "decode", "gateway"} else None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each daemon wants a core")
def test_own_cores(tmp_path):
    with open(tmp_path / "cells.jsonl", "w") as output, open(tmp_path / "log", "w") as log:
        bench = subprocess.Popen(command("--link", "none", "--own-cores", codecs="planes", repeat=1),
                                 stdout=output, stderr=log)
    try:
        while (cores := daemons_of(bench)) is None:
            assert bench.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.02)
        assert bench.wait(300) == 0, (tmp_path / "log").read_text()
    finally:
        bench.kill()
        bench.wait()
    assert len(cores["prefill"]) == len(cores["decode"]) == 1
    assert not cores["prefill"] & cores["decode"]
    assert cores["gateway"] == os.sched_getaffinity(0)
    assert json.loads((tmp_path / "cells.jsonl").read_text())["own_cores"] is True


def test_too_few_cores_are_an_error_at_once():
    done = subprocess.run(command("--link", "none", "--own-cores", threads=1024),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--own-cores: 1024 cores" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_signal_leaves_nothing(tmp_path):
    log = tmp_path / "log"
    with open(log, "w") as f:
        process = subprocess.Popen(command("--link", "50mbit"), stdout=f, stderr=f)
    try:
        while "link 50mbit:" not in log.read_text():
            if process.poll() is not None:
                text = log.read_text()
                assert "shaped links need" in text or "in use" in text, text
                pytest.skip(text)
            time.sleep(0.05)
        assert len(namespaces()) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    assert "stopped by a signal" in log.read_text()
    assert namespaces() == []
