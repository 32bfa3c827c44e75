"""Documents agree with the tree: links lead somewhere, and the table of layers is cmake/layers.json."""
import json
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ROW = re.compile(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", re.MULTILINE)


def documents():
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").rglob("*.md")


def dead_links(folder, text):
    return [target for target in LINK.findall(text) if not (folder / target).exists()]


class DocsTest(unittest.TestCase):
    def test_links_lead_somewhere(self):
        dead = {str(path): links for path in documents() if (links := dead_links(path.parent, path.read_text()))}
        self.assertEqual(dead, {})

    def test_a_dead_link_is_found(self):
        self.assertEqual(dead_links(ROOT, "[a](README.md#use) [b](docs/nothing.md)"), ["docs/nothing.md"])

    def test_the_table_of_layers_is_the_one_that_is_built(self):
        table = json.loads((ROOT / "cmake/layers.json").read_text())
        rows = ROW.findall((ROOT / "docs/architecture.md").read_text())
        documented = {layer: [] if below == "–" else below.split(", ") for layer, below in rows}
        self.assertEqual(documented, {layer: row["layers"] for layer, row in table.items()})


if __name__ == "__main__":
    unittest.main()
