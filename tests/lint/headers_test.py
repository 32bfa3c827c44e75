"""Every public header compiles by itself, twice included: headers_test.py COMPILER"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = sys.argv[1]
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-"]


def compile_header(include_dir, name):
    """The compiler's complaints, or an empty string."""
    text = f'#include "{name}"\n#include "{name}"\n'
    done = subprocess.run([COMPILER, "-I", str(include_dir), *FLAGS], input=text, text=True, capture_output=True)
    return "" if done.returncode == 0 else f"{name}\n{done.stderr}"


class HeadersTest(unittest.TestCase):
    def test_public_headers_stand_alone(self):
        include = ROOT / "include"
        names = sorted(path.relative_to(include).as_posix() for path in include.rglob("*.h"))
        self.assertGreater(len(names), 20)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            complaints = [text for text in pool.map(lambda name: compile_header(include, name), names) if text]
        self.assertEqual(complaints, [], "\n" + "\n".join(complaints))

    def test_a_header_that_does_not_is_found(self):
        self.assertIn("kvant/base/nothing.h", compile_header(ROOT / "include", "kvant/base/nothing.h"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
