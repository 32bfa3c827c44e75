"""Objects built for AVX2 or AVX-512 define nothing but their tables.

A weak symbol there (an inline function, a template instance) could be the copy the linker keeps for the whole program,
which would then need that instruction set everywhere.
"""
import re
import subprocess
import sys
import unittest

NM, ARCHIVE = sys.argv[1:3]
TABLE = re.compile(r"^kvant::kernels::k\w+(Avx2|Avx512\w*)$")
HEADING = re.compile(r"^(\S+_avx(?:2|512)\.cc\.o):$")


def symbols_by_object(listing):
    """Names of global definitions per AVX object, from nm's listing of an archive."""
    symbols, current = {}, None
    for line in listing.splitlines():
        if line.endswith(":"):
            heading = HEADING.match(line)
            current = symbols.setdefault(heading.group(1), []) if heading else None
        elif current is not None and line:
            _, kind, name = line.split(maxsplit=2)
            if not name.startswith(("DW.ref.", "__odr_asan.")):
                current.append((kind, name))
    return symbols


class IsaSymbolsTest(unittest.TestCase):
    def test_only_tables_are_visible(self):
        listing = subprocess.run([NM, "-C", "--defined-only", "--extern-only", ARCHIVE], check=True,
                                 capture_output=True, text=True).stdout
        symbols = symbols_by_object(listing)
        self.assertGreaterEqual(len(symbols), 5, listing)
        for name, defined in symbols.items():
            self.assertTrue(defined, name)
            for kind, symbol in defined:
                self.assertTrue(kind in "RDB" and TABLE.match(symbol), f"{name}: {kind} {symbol}")

    def test_a_weak_symbol_would_be_found(self):
        listing = "rows_avx2.cc.o:\n0000 W std::vector<int>::size() const\n0000 R kvant::kernels::kRowLoopsAvx2\n"
        (_, defined), = symbols_by_object(listing).items()
        self.assertFalse(all(TABLE.match(symbol) for _, symbol in defined))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
