# SPDX-License-Identifier: Apache-2.0
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import cluster  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes; run by ctest -C slow")
    if not os.path.exists(cluster.LYNX):
        pytest.exit(f"{cluster.LYNX} is missing: run ./scripts/build", returncode=1)
    if not os.path.exists(cluster.MODEL):
        pytest.exit(f"{cluster.MODEL} is missing: run ./scripts/test", returncode=1)
