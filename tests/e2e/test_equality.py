# SPDX-License-Identifier: Apache-2.0
"""The central promise: the same tokens however they are computed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster import Cluster, own_prompts, reference

MAX_TOKENS = 32
SAMPLED = {"temperature": 0.8, "top_p": 0.95}


def answers(cluster, prompts, concurrency=1):
    """Greedy and sampled token ids of every prompt, and the timelines."""
    jobs = [(p, {}) for p in prompts]
    jobs += [(p, {**SAMPLED, "seed": sum(p)}) for p in prompts]
    with ThreadPoolExecutor(concurrency) as pool:
        results = list(pool.map(lambda j: cluster.complete(j[0], MAX_TOKENS, **j[1]), jobs))
    return [ids for ids, _ in results], [a["usage"]["lynx"] for _, a in results]


@pytest.fixture(scope="module")
def baseline():
    """One colocated engine, one thread, one request at a time."""
    with Cluster("--colocated", "--threads", 1) as c:
        prompts = own_prompts(c.http)
        assert len(prompts) >= 20 and max(map(len, prompts)) == 4000
        prompts += [case["prompt_ids"] for case in reference() if case["n_prompt"] <= 4000]
        ids, _ = answers(c, prompts)
    return prompts, ids


def check(got, want, prompts):
    for i, (g, w) in enumerate(zip(got, want)):
        assert g == w, f"prompt of {len(prompts[i % len(prompts)])} tokens, " \
                       f"{'sampled' if i >= len(prompts) else 'greedy'}"
    assert len(got) == len(want)


def test_disaggregated_with_speculation(baseline):
    prompts, want = baseline
    with Cluster("--threads", 1) as c:
        got, timelines = answers(c, prompts)
        c.wait_until_idle()
    check(got, want, prompts)
    handed_over = [t for t in timelines if t["handoffs"] > 0]
    assert len(handed_over) >= 10


def test_disaggregated_without_speculation(baseline):
    prompts, want = baseline
    with Cluster("--threads", 1, "--speculation", "off") as c:
        got, timelines = answers(c, prompts)
    check(got, want, prompts)
    assert all(t["drafted"] == 0 for t in timelines)


@pytest.mark.parametrize("mode", ["residual", "source", "hold"])
def test_verification_before_the_target_lands(baseline, mode):
    prompts, want = baseline
    chosen = [i for i, p in enumerate(prompts) if 128 < len(p) <= 1500][:10]
    with Cluster("--threads", 1, "--verify", mode) as c:
        got, timelines = answers(c, [prompts[i] for i in chosen], concurrency=4)
        c.wait_until_idle()
    check(got, [want[i] for i in chosen] + [want[len(prompts) + i] for i in chosen],
          [prompts[i] for i in chosen])
    assert sum(t["handoffs"] > 0 for t in timelines) >= 5


def test_eight_at_once_on_two_of_each(baseline):
    prompts, want = baseline
    with Cluster("--threads", 1, "--prefill", 2, "--decode", 2, "--anchor", "auto") as c:
        got, timelines = answers(c, prompts, concurrency=8)
        c.wait_until_idle()
    check(got, want, prompts)
    assert all("anchor" in t for t in timelines if t["handoffs"] > 0)
    assert any(t.get("anchor_estimate_ms", 0) > 0 for t in timelines)


def test_small_chunks_two_threads_eight_at_once(baseline):
    prompts, want = baseline
    with Cluster("--colocated", "--threads", 2, "--max-num-batched-tokens", 64) as c:
        got, _ = answers(c, prompts, concurrency=8)
    check(got, want, prompts)


def test_tensor_parallel():
    """The model divided among three ranks, one KV head each: colocated and disaggregated."""
    args = ["--tensor-parallel-size", 3, "--threads", 3]
    with Cluster("--colocated", *args) as c:
        prompts = [p for p in own_prompts(c.http) if len(p) <= 700][-4:]
        want, _ = answers(c, prompts)
    with Cluster(*args) as c:
        got, timelines = answers(c, prompts, concurrency=4)
        c.wait_until_idle()
    check(got, want, prompts)
    assert any(t["handoffs"] > 0 for t in timelines)


def check_on_target(baseline, target, chosen):
    """The chosen prompts on another instruction set, colocated."""
    prompts, want = baseline
    with open("/proc/cpuinfo") as f:
        flags = f.read()
    if target != "scalar" and {"avx2": " avx2 ", "avx512": " avx512bw "}[target] not in flags:
        pytest.skip(f"this processor has no {target}")
    with Cluster("--colocated", "--threads", 2, "--cpu-target", target) as c:
        got, _ = answers(c, [prompts[i] for i in chosen])
    check(got, [want[i] for i in chosen] + [want[len(prompts) + i] for i in chosen],
          [prompts[i] for i in chosen])


@pytest.mark.parametrize("target,longest,count",
                         [("scalar", 65, 6), ("avx2", 1500, 40), ("avx512", 1500, 40)])
def test_instruction_sets(baseline, target, longest, count):
    chosen = [i for i, p in enumerate(baseline[0]) if len(p) <= longest][-count:]
    check_on_target(baseline, target, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "avx512", "scalar"])
def test_instruction_sets_on_every_prompt(baseline, target):
    check_on_target(baseline, target, range(len(baseline[0])))


def near_tie_path(ids, case, error=2e-3):
    """The reference's rule: at the first difference the margin must be below our logit error and
    our token the runner-up."""
    for i, (got, want) in enumerate(zip(ids, case["greedy_ids"])):
        if got != want:
            assert case["greedy_margin"][i] < error and got == case["greedy_runner_up"][i], \
                f"{case['name']}: step {i}: {got}, want {want}, margin {case['greedy_margin'][i]}"
            return


@pytest.mark.parametrize("longest", [600, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [["--colocated"], [], ["--speculation", "off"]],
                         ids=["colocated", "disaggregated", "without-speculation"])
def test_f32_equals_the_reference(mode, longest):
    cases = [c for c in reference() if c["n_prompt"] <= longest]
    if not cases:
        pytest.skip("the reference vectors are not here (shared/reference/model)")
    with Cluster("--compute", "f32", "--threads", 1, *mode) as c:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda k: c.complete(k["prompt_ids"], 64), cases))
    for case, (ids, _) in zip(cases, results):
        assert len(ids) == 64
        near_tie_path(ids, case)
