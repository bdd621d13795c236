# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check without a GPU: limits, what it reads out of each program, and its JSON."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import stat
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", os.path.join(ROOT, "scripts/gpu_check"))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)

GTEST = """\
[ RUN      ] RopeTest.EveryShape
[       OK ] RopeTest.EveryShape (12 ms)
[ RUN      ] Damage/PlaneTest.Refuses/3
[       OK ] Damage/PlaneTest.Refuses/3 (7 ms)
"""
FAILING = GTEST + """\
[ RUN      ] GemmTest.Tails
[  FAILED  ] GemmTest.Tails (3 ms)
[ RUN      ] GemmTest.Damage
[  FAILED  ] GemmTest.Damage, where GetParam() = 5 (3 ms)
"""
CLEAN = GTEST + "========= ERROR SUMMARY: 0 errors\n"


class Judgements(unittest.TestCase):
    def test_gtest(self):
        passed = gpu_check.judge_gtest(0, GTEST)
        self.assertEqual(passed["state"], "passed")
        self.assertEqual(passed["tests"]["passed"], 2)
        failed = gpu_check.judge_gtest(1, FAILING)
        self.assertEqual(failed["tests"]["failed"], ["GemmTest.Tails", "GemmTest.Damage"])
        self.assertIn("GemmTest.Tails", failed["reason"])

    def test_gtest_that_was_cut_off_names_the_test(self):
        for code in (None, -11):
            cut = gpu_check.judge_gtest(code, GTEST + "[ RUN      ] SampleTest.Ties\n")
            self.assertEqual(cut["state"], "failed")
            self.assertIn("in SampleTest.Ties", cut["reason"])

    def test_skipped_tests_are_not_passed(self):
        skipped = "[ RUN      ] A.B\n[  SKIPPED ] A.B (0 ms)\n"
        self.assertEqual(gpu_check.judge_gtest(0, skipped)["state"], "failed")
        self.assertEqual(gpu_check.judge_gtest(0, "")["state"], "failed")

    def test_sanitizers(self):
        self.assertEqual(gpu_check.judge_sanitizer(0, CLEAN)["state"], "passed")
        race = GTEST + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
        self.assertEqual(gpu_check.judge_sanitizer(0, race)["state"], "passed")
        bad = gpu_check.judge_sanitizer(9, CLEAN.replace("0 errors", "10 errors"))
        self.assertEqual((bad["state"], bad["reason"]), ("failed", "10 errors"))
        self.assertEqual(gpu_check.judge_sanitizer(0, GTEST)["state"], "failed")
        refused = gpu_check.judge_sanitizer(1, "========= Error: Device not supported.\n")
        self.assertIn("Device not supported", refused["reason"])
        self.assertEqual(refused["state"], "unavailable")

    def test_bench_keeps_the_lines_of_a_run_that_was_cut_off(self):
        lines = '{"kernel":"copy","us":1.5}\nsome words\n{"kernel":"rope","us":2.0}\n'
        whole, cut = gpu_check.judge_bench(0, lines), gpu_check.judge_bench(None, lines)
        self.assertEqual((whole["state"], cut["state"]), ("passed", "failed"))
        self.assertEqual([line["kernel"] for line in cut["lines"]], ["copy", "rope"])
        self.assertEqual(gpu_check.judge_bench(0, "")["state"], "failed")


class Limits(unittest.TestCase):
    def test_a_command_out_of_time_is_killed_with_its_children(self):
        begin = time.monotonic()
        code, output = gpu_check.run_command(["sh", "-c", "echo begun; sleep 60; echo over"], 0.5)
        self.assertIsNone(code)
        self.assertEqual(output, "begun\n")
        self.assertLess(time.monotonic() - begin, 30)

    def test_stages_share_the_time(self):
        with contextlib.redirect_stdout(io.StringIO()):
            check = gpu_check.Check(total_seconds=3)
            check.stage("bench", lambda s: gpu_check.verdict(s <= 3))
            check.begin -= 3
            check.stage("equality", lambda s: gpu_check.verdict(True))
        self.assertEqual([s["state"] for s in check.stages], ["passed", "unavailable"])

    def test_a_stage_that_raises_has_failed(self):
        with contextlib.redirect_stdout(io.StringIO()):
            check = gpu_check.Check()
            check.stage("bench", lambda s: {}["no such key"])
        self.assertEqual(check.stages[0]["state"], "failed")
        self.assertIn("KeyError", check.stages[0]["reason"])

    def test_limits_of_stages_fit_the_whole(self):
        without_build = sum(v for k, v in gpu_check.LIMITS.items() if k != "build")
        self.assertLessEqual(gpu_check.TOTAL_SECONDS, 360)
        self.assertLessEqual(without_build, 1.1 * gpu_check.TOTAL_SECONDS)


class Program(unittest.TestCase):
    """main() on a build directory of scripts that print what the real programs would."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.out = os.path.join(self.directory.name, "report.json")

    def program(self, name, output, code=0):
        path = os.path.join(self.directory.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(f"#!/bin/sh\ncat <<'END'\n{output}END\nexit {code}\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def run_main(self, *args):
        with contextlib.redirect_stdout(io.StringIO()):
            code = gpu_check.main(["--build", self.directory.name, "--out", self.out, *args])
        with open(self.out) as f:
            report = json.load(f)
        return code, report, {stage["stage"]: stage for stage in report["stages"]}

    def test_report(self):
        self.program("tests/conformance_simt_test", GTEST)
        self.program("bench/cuda_kernel_bench_simt", '{"kernel":"copy","us":1.5}\n')
        code, report, stages = self.run_main("--simt", "--model", "/nowhere.gguf")
        self.assertEqual((code, report["passed"]), (1, False))
        self.assertEqual(stages["conformance"]["state"], "passed")
        self.assertEqual(stages["bench"]["lines"], [{"kernel": "copy", "us": 1.5}])
        self.assertEqual(stages["equality"]["state"], "unavailable")
        self.assertIn("/nowhere.gguf", stages["equality"]["reason"])
        self.assertEqual(report["device"]["name"], "emulated")

    def test_a_build_without_the_programs(self):
        code, _, stages = self.run_main("--simt")
        self.assertEqual(code, 1)
        self.assertTrue(all(s["state"] == "unavailable" for s in stages.values()))
        self.assertIn("conformance_simt_test", stages["bench"]["reason"])

    def test_no_gpu_is_one_line(self):
        def nothing():
            raise LookupError("no NVIDIA driver: libcuda.so.1")
        find_device, gpu_check.find_device = gpu_check.find_device, nothing
        self.addCleanup(setattr, gpu_check, "find_device", find_device)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(gpu_check.main(["--out", self.out]), 1)
        self.assertEqual(errors.getvalue(), "error: no NVIDIA driver: libcuda.so.1\n")
        self.assertFalse(os.path.exists(self.out))


class Equality(unittest.TestCase):
    def test_first_difference(self):
        difference = gpu_check.serve_equality.first_difference
        self.assertIsNone(difference([[1, 2], [3]], [[1, 2], [3]]))
        self.assertEqual(difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]),
                         "request 1, token 1: [5], want [4]")
        self.assertEqual(difference([[1, 2]], [[1]]), "request 0, token 1: [], want [2]")

    def test_a_server_that_does_not_start_is_an_error_of_each_way(self):
        report = gpu_check.serve_equality.run("/bin/false", "model", "text", 20)
        self.assertFalse(report["passed"])
        self.assertTrue(all("lynx serve ended" in way["error"] for way in report["ways"].values()))


if __name__ == "__main__":
    unittest.main()
