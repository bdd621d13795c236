# SPDX-License-Identifier: Apache-2.0
"""Starts a cluster for the client tests, unless LYNX_TEST_URL names a running one."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))

from cluster import Cluster  # noqa: E402


def pytest_configure(config):
    config.lynx_cluster = None
    if not os.environ.get("LYNX_TEST_URL"):
        config.lynx_cluster = Cluster("--threads", 1).__enter__()
        os.environ["LYNX_TEST_URL"] = config.lynx_cluster.url


def pytest_unconfigure(config):
    if config.lynx_cluster:
        config.lynx_cluster.__exit__()
