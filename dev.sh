#!/usr/bin/env bash
# ./dev.sh demo | test | lint | bench [arguments passed on]
# Sets up what is missing (a virtual environment in .venv, a software Vulkan driver), then does it.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
VENV="$ROOT/.venv"
PY="$VENV/bin/python"

usage() {
  cat <<'EOF'
usage: ./dev.sh COMMAND [arguments]
  demo [read_text] [PICTURE]   read the text in a picture, on the GPU and on the CPU
  demo file_type [FILE ...]    tell the type of files from their bytes
  test [PYTEST ARGUMENTS]      run the tests, e.g. ./dev.sh test -m "not slow"
  lint                         ruff check, ruff format --check, mypy --strict
  bench MODEL.onnx [OPTIONS]   onnx-wgpu bench
  bench [NAMES] [OPTIONS]      this engine beside others, written to docs/benchmarks.md in 18 minutes;
                               --install gets the others first, --help lists the options
PYTHON=/path/to/python picks the interpreter (3.11 or newer) that .venv is made with.
EOF
}

say() { printf 'dev.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Runs a command as root if that is possible without asking for a password.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null 2>&1; then sudo -n "$@"
  else return 1; fi
}

can_apt() { command -v apt-get >/dev/null 2>&1 && as_root true 2>/dev/null; }

# Quiet unless it fails.
apt_install() {
  local log
  log="$(mktemp)"
  if ! as_root env DEBIAN_FRONTEND=noninteractive sh -c \
    'apt-get update && apt-get install -y --no-install-recommends "$@"' sh "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

find_python() {
  local name
  for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

make_venv() {
  local python version
  if ! find_python >/dev/null && can_apt; then
    say "installing Debian's python3"
    apt_install python3 python3-venv || say "apt-get could not install python3"
  fi
  python="$(find_python)" || die "Python 3.11 or newer is needed; install it (Debian: apt-get install python3 python3-venv) or set PYTHON=/path/to/python"
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    can_apt || die "$python has no venv module; install it (Debian: apt-get install python$version-venv) and run this again"
    say "installing Debian's python$version-venv"
    apt_install "python$version-venv" || die "apt-get could not install python$version-venv"
  fi
  say "making .venv with Python $version"
  "$python" -m venv --clear "$VENV"
}

# The environment is as pyproject.toml wants it when the stamp holds its checksum and this folder.
ensure_packages() {
  local want stamp="$VENV/.dev-stamp"
  want="$(cksum <"$ROOT/pyproject.toml") $ROOT"
  if [ -x "$PY" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return 0; fi
  "$PY" -c 'import pip' >/dev/null 2>&1 || make_venv
  say "installing the packages into .venv (about a minute the first time)"
  "$PY" -m pip install -qq --disable-pip-version-check -e "$ROOT[test,demo]" >&2
  printf '%s' "$want" >"$stamp"
}

has_adapter() {
  "$PY" - <<'EOF' 2>/dev/null
import sys
import wgpu
kinds = {a.info["backend_type"] for a in wgpu.gpu.enumerate_adapters_sync()}
sys.exit(not kinds & {"Vulkan", "Metal", "D3D12"})
EOF
}

# An adapter once found is taken to stay; an install is tried once, the search is repeated.
ensure_adapter() {
  local found="$VENV/.adapter-found" tried="$VENV/.adapter-tried"
  [ -e "$found" ] && return 0
  if ! has_adapter && [ ! -e "$tried" ]; then
    if can_apt; then
      say "no GPU adapter found: installing Mesa's software Vulkan (mesa-vulkan-drivers)"
      apt_install mesa-vulkan-drivers || say "apt-get could not install mesa-vulkan-drivers"
    fi
    touch "$tried"
  fi
  if has_adapter; then
    touch "$found"
  else
    say "no Vulkan, Metal or D3D12 adapter: going on with the CPU. For the GPU path install your GPU's Vulkan driver, or software Vulkan (Debian, Ubuntu: apt-get install mesa-vulkan-drivers; Fedora: dnf install mesa-vulkan-drivers)"
  fi
}

# Tint compiles what the tests render as browsers do; without it that test is skipped, or fails if
# ENGINE_REQUIRE_TINT=1, in which case Node.js is installed if need be.
ensure_tint() {
  local folder="$ROOT/tests/portability" want stamp
  if ! command -v npm >/dev/null 2>&1; then
    if [ "${ENGINE_REQUIRE_TINT:-}" != 1 ] || ! can_apt; then return 0; fi
    say "installing Debian's nodejs and npm"
    apt_install nodejs npm || say "apt-get could not install nodejs and npm"
  fi
  command -v npm >/dev/null 2>&1 || return 0
  want="$(cksum <"$folder/package-lock.json")"
  stamp="$folder/node_modules/.dev-stamp"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return 0; fi
  say "installing Tint (npm's webgpu) into tests/portability/node_modules"
  if npm --prefix "$folder" ci --no-audit --no-fund --loglevel=error --fetch-retries=1 >&2; then
    printf '%s' "$want" >"$stamp"
  else
    say "npm could not install it: going on without"
  fi
}

# Chromium opens the pages that `explain --html` writes; without one those tests are skipped, or fail
# if ENGINE_REQUIRE_CHROMIUM=1, in which case it is installed if need be.
ensure_chromium() {
  local name
  for name in chromium chromium-browser google-chrome-stable google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then return 0; fi
  done
  if [ "${ENGINE_REQUIRE_CHROMIUM:-}" != 1 ] || ! can_apt; then return 0; fi
  say "installing Debian's chromium"
  apt_install chromium fonts-dejavu-core || say "apt-get could not install chromium"
}

command="${1:-}"
case "$command" in
  demo | test | lint | bench) shift ;;
  -h | --help | help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

ensure_packages
if [ -z "${XDG_RUNTIME_DIR:-}" ]; then
  export XDG_RUNTIME_DIR="$VENV/run"
  mkdir -p -m 700 "$XDG_RUNTIME_DIR"
fi
[ "$command" = lint ] || ensure_adapter
[ "$command" != test ] || { ensure_tint; ensure_chromium; }

case "$command" in
  demo)
    name=read_text
    case "${1:-}" in read_text | file_type) name="$1"; shift ;; esac
    exec "$PY" "$ROOT/demos/$name.py" "$@"
    ;;
  test)
    cd "$ROOT"
    exec "$PY" -m pytest "$@"
    ;;
  lint)
    cd "$ROOT"
    status=0
    "$PY" -m ruff check . || status=1
    "$PY" -m ruff format --check . || status=1
    "$PY" -m mypy --strict engine cpu_fallback || status=1
    exit "$status"
    ;;
  bench)
    case "${1:-}" in
      *.onnx) exec "$PY" -m engine bench "$@" ;;
    esac
    cd "$ROOT"
    exec "$PY" -m tests.bench.peers "$@"
    ;;
esac
