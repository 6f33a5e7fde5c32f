#!/usr/bin/env bash
# usage: tests/on_device.sh [--short] [--seconds N] [FOLDER]
# For a machine with a real GPU: are the models right on it, how fast are they, and how much of its
# peak do the kernels reach? Takes at most 8 minutes (--seconds counts from the start; what is left
# out for lack of time is named). Writes a folder (on_device_report by default); README.md in it
# says what is there. The exit status is 0 if every model that ran was right.
# PYTHON=... picks an interpreter that has this project with its extra `test`; else ./dev.sh's .venv,
# which is made if it is not there. Models that cannot be fetched are left out, and named.
set -euo pipefail
START=$(date +%s)
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
if [ -z "${PYTHON:-}" ]; then
  PYTHON="$ROOT/.venv/bin/python"
  [ -x "$PYTHON" ] || ./dev.sh lint >/dev/null 2>&1 || true
fi
if ! "$PYTHON" -c 'import wgpu, onnxruntime, pytest' 2>/dev/null; then
  echo "on_device.sh: $PYTHON lacks wgpu, onnxruntime or pytest; run ./dev.sh test once, or set PYTHON" >&2
  exit 2
fi
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-$(mktemp -d)}"
exec "$PYTHON" -m tests.bench.on_device --started "$START" "$@"
