"""Benchmarks the demos' models: `onnx-wgpu bench` on each, at the sizes that the demos use.

usage: bench.py [arguments of `onnx-wgpu bench`]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _models import FILE_TYPE, TEXT_ANGLE, TEXT_DETECTOR, TEXT_RECOGNISER, fetch


def main() -> int:
    noise = np.random.default_rng(0)
    inputs = {
        TEXT_DETECTOR: ("x", noise.uniform(-1, 1, (1, 3, 480, 640)).astype(np.float32)),
        TEXT_ANGLE: ("x", noise.uniform(-1, 1, (4, 3, 48, 192)).astype(np.float32)),
        TEXT_RECOGNISER: ("x", noise.uniform(-1, 1, (1, 3, 48, 320)).astype(np.float32)),
        FILE_TYPE: ("bytes", noise.integers(0, 256, (1, 2048)).astype(np.int32)),
    }
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder, "input.npy")
        for path, (name, array) in zip(fetch(list(inputs)), inputs.values(), strict=True):
            np.save(saved, array)
            command = [sys.executable, "-m", "engine", "bench", str(path), "--input"]
            done = subprocess.run([*command, f"{name}={saved}", *sys.argv[1:]])
            status = status or done.returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
