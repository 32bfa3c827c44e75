"""What no file of the project may hold, whoever wrote it."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = {".git", ".cache", "build", "__pycache__"}
SUFFIXES = {"", ".cc", ".cmake", ".cu", ".cuh", ".h", ".json", ".md", ".py", ".sh", ".txt"}
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.)}\]*-])/(work|tmp|root|home|mnt)/"),
    "a host of a registry": re.compile(r"pypi\.org|pythonhos[t]ed|debian\.org|conda\.|np[m]js|crates\.io|huggingface\.co"),
    "something left for later": re.compile(r"\b(T[O]DO|FIX[M]E|X[X]X)\b"),
    "a blank at a line's end": re.compile(r"[ \t]+$", re.MULTILINE),
    "a carriage return": re.compile(r"\r"),
}


def texts():
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.is_file() and path.suffix in SUFFIXES and not SKIPPED.intersection(parts) and parts[1:2] != ("golden",):
            yield path, path.read_text(encoding="utf-8")


def faults_of(name, text):
    for what, pattern in FORBIDDEN.items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {what}: {match.group()!r}"
    if text and not text.endswith("\n"):
        yield f"{name}: no line break at the end"


class TextTest(unittest.TestCase):
    def test_no_file_holds_what_is_forbidden(self):
        faults = [fault for path, text in texts() for fault in faults_of(path.relative_to(ROOT), text)]
        self.assertEqual(faults, [], "\n" + "\n".join(faults))

    def test_each_fault_is_found(self):
        for text in ('open("' + "/tm" + 'p/x")\n', "pypi" + ".org\n", "// TO" + "DO later\n", "a \n", "a\r\n", "a"):
            self.assertEqual(len(list(faults_of("sample", text))), 1, repr(text))

    def test_relative_paths_are_allowed(self):
        self.assertEqual(list(faults_of("sample", "build/work/x ${DIR}/tmp/x ../tmp/x\n")), [])

    def test_the_project_is_read(self):
        names = {path.relative_to(ROOT).as_posix() for path, _ in texts()}
        self.assertEqual({"README.md", "LICENSE", "scripts/setup.sh", "cmake/layers.json"} - names, set())


if __name__ == "__main__":
    unittest.main()
