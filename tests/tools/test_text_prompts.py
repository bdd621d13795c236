# SPDX-License-Identifier: Apache-2.0
"""tools/text_prompts.py prints prompts that `lynx bench serve` reads."""

import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(*args):
    return subprocess.run([sys.executable, os.path.join(ROOT, "tools", "text_prompts.py"), *args],
                          capture_output=True, text=True, check=False)


class TextPrompts(unittest.TestCase):
    def test_lines(self):
        lines = [json.loads(line) for line in
                 run("--number", "5", "--characters", "1000", "--output-tokens", "7").stdout.splitlines()]
        self.assertEqual(len(lines), 5)
        self.assertEqual(len({line["prompt"] for line in lines}), 5)
        for line in lines:
            self.assertEqual(line["output_tokens"], 7)
            self.assertGreater(len(line["prompt"]), 1000)
            self.assertLess(len(line["prompt"]), 1100)

    def test_more_text_than_there_is(self):
        result = run("--characters", "100000000")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--characters: there are only", result.stderr)


if __name__ == "__main__":
    unittest.main()
