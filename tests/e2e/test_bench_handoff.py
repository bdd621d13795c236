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
COMMAND = [LYNX, "bench", "handoff", "--model", MODEL, "--corpus", CORPUS, "--prompt-tokens", "512",
           "--codecs", "bf16,planes", "--repeat", "2", "--max-tokens", "9", "--busy", "idle",
           "--threads", "1"]


def namespaces():
    directory = "/var/run/netns"
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [name for name in names if name.startswith("lynxlab-")]


def test_cells_over_loopback(tmp_path):
    output = tmp_path / "cells.jsonl"
    done = subprocess.run([*COMMAND, "--link", "none", "--json", output], capture_output=True,
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


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_signal_leaves_nothing(tmp_path):
    log = tmp_path / "log"
    with open(log, "w") as f:
        process = subprocess.Popen([*COMMAND, "--link", "50mbit"], stdout=f, stderr=f)
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
