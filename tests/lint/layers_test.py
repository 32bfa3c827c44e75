"""Every include must be allowed by cmake/layers.json, the table the targets are linked from."""
import json
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = json.loads((ROOT / "cmake/layers.json").read_text())
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of(path):
    """include/kvant/<layer>/… and src/<layer>/…"""
    parts = path.relative_to(ROOT).parts
    return parts[2] if parts[0] == "include" else parts[1]


def faults_of(path, text):
    layer = layer_of(path)
    row = TABLE[layer]
    faults = []
    for bracket, target in INCLUDE.findall(text):
        if target.startswith("kvant/"):
            below = target.split("/")[1]
            if below != layer and below not in row["layers"]:
                faults.append(f"{path.relative_to(ROOT)}: layer {layer} may not include {target}")
        elif bracket == '"' or "." in target or "/" in target:
            own = bracket == '"' and target.split("/")[0] == layer
            if not own and not any(target.startswith(allowed) for allowed in row["external"]):
                faults.append(f"{path.relative_to(ROOT)}: layer {layer} may not include {target}")
    return faults


def sources():
    for top in ("include/kvant", "src"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


class LayersTest(unittest.TestCase):
    def test_every_include_is_in_the_table(self):
        faults = [fault for path in sources() for fault in faults_of(path, path.read_text())]
        self.assertEqual(faults, [])

    def test_the_table_has_no_cycle(self):
        placed = set()
        while len(placed) < len(TABLE):
            ready = [l for l, row in TABLE.items() if l not in placed and set(row["layers"]) <= placed]
            self.assertTrue(ready, f"cycle among {set(TABLE) - placed}")
            placed.update(ready)

    def test_a_forbidden_include_is_found(self):
        path = ROOT / "src/codec/token_page.cc"
        self.assertTrue(faults_of(path, '#include "kvant/cache/sequence.h"\n'))
        self.assertTrue(faults_of(path, '#include <ggml.h>\n'))
        self.assertFalse(faults_of(path, '#include "kvant/base/half.h"\n#include <vector>\n'))

    def test_there_are_sources_of_each_layer_on_disk(self):
        found = {layer_of(path) for path in sources()}
        self.assertLessEqual(found, set(TABLE))
        self.assertIn("codec", found)


if __name__ == "__main__":
    unittest.main()
