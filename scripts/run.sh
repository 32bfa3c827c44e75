#!/usr/bin/env bash
# Everything needed, a build, and the main job: one prompt through a prefill engine, a link and a decode engine, the KV
# cache sent at fp16, int8 and int4. The last lines are a table of what that did to answer, bytes and times.
#
#   scripts/run.sh [PROMPT]     KVANT_LINK_GBPS sets the link's rate (default 0.02)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup
build release kvant

prompt=(--file "$KVANT_ROOT/scripts/prompt.txt")
[[ $# -eq 0 ]] || prompt=(--prompt "$*")
link="${KVANT_LINK_GBPS:-0.02}"
new_stage "$KVANT_ROOT/build"
for wire in fp16 int8 int4; do
  say "kvant generate --disaggregated --wire $wire --link-gbps $link"
  KVANT_MODELS_DIR="$(models_dir)" "$KVANT_ROOT/build/release/kvant" generate --disaggregated --wire "$wire" \
    --link-gbps "$link" --max-tokens 64 "${prompt[@]}" --json >"$stage/$wire.json"
done
python3 "$KVANT_ROOT/scripts/precision_table.py" "$stage"/{fp16,int8,int4}.json
