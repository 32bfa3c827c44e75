#!/usr/bin/env bash
# Everything needed, a build and all tests: scripts/test.sh [release|debug|asan|tsan]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

preset="${1:-release}"
setup
build "$preset"
cd "$KVANT_ROOT"
KVANT_TEST_MODEL="$(models_dir)/$MODEL_FILE"
export KVANT_TEST_MODEL
ctest --preset "$preset"
