#!/usr/bin/env bash
# clang-tidy over our sources, by the list in .clang-tidy: scripts/tidy.sh [BUILD_FOLDER]
# Needs clang-tidy and a configured build. Ends with 0 only where there is nothing to say.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build="${1:-build/release}"
command -v clang-tidy >/dev/null || { echo "tidy: no clang-tidy: apt-get install clang-tidy" >&2; exit 1; }
[[ -e "$build/compile_commands.json" ]] || { echo "tidy: $build is not configured: cmake --preset release" >&2; exit 1; }

# Sources of layers that this build leaves out (CUDA, core only) have no compile command.
python3 - "$build" <<'PYTHON' | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet
import json, pathlib, sys

commands = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())
own = pathlib.Path("src").resolve()
files = sorted({entry["file"] for entry in commands if own in pathlib.Path(entry["file"]).parents})
sys.stdout.write("".join(file + "\0" for file in files if file.endswith(".cc")))
PYTHON
