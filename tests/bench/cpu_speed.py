"""How the NumPy path compares with ONNX Runtime's CPU provider, model by model.

    python tests/bench/cpu_speed.py MODEL.onnx ... [--inputs FOLDER] [--threads 1] [--seconds 2]

Both engines run in this process, in turn, with the same number of threads; of each the least time
of all turns counts. CPU time is that of the process: on a busy machine it is the one to trust, with
one thread. `--inputs FOLDER` holds NAME.npz with arrays `in:INPUT`; models without one get seeded
noise, open sizes 1.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}


def limit_threads(count: int) -> None:
    """Must run before NumPy is imported: OpenBLAS reads its settings when it is loaded."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(count)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)


def inputs_of(session: Any, stored: Path | None) -> dict[str, Any]:
    """What to feed: the stored arrays of a model, or noise from a fixed seed."""
    import numpy as np

    if stored is not None and stored.exists():
        with np.load(stored) as arrays:
            return {k[3:]: arrays[k] for k in arrays.files if k.startswith("in:")}
    chance = np.random.default_rng(0)
    feeds = {}
    for item in session.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in item.shape]
        kind = np.dtype(KINDS[item.type])
        noise = chance.standard_normal(shape) if kind.kind == "f" else chance.integers(0, 9, shape)
        feeds[item.name] = np.asarray(noise, kind)
    return feeds


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall milliseconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return (time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3


def compare(path: Path, stored: Path | None, threads: int, seconds: float) -> list[float]:
    """CPU ms of this engine, of ONNX Runtime, then wall ms of both, and the largest error."""
    import numpy as np
    import onnxruntime

    import engine

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = inputs_of(theirs, stored)
    with engine.InferenceSession(path, device="cpu") as mine:
        calls = [lambda: mine.run(None, feeds), lambda: theirs.run(None, feeds)]
        got, want = (call() for call in calls)
        error = max(
            float(np.abs(a.astype(float) - b).max()) / max(float(np.abs(b).max()), 1e-30)
            for a, b in zip(got, want, strict=True)
        )
        least = [[math.inf, math.inf], [math.inf, math.inf]]
        end, turns = time.perf_counter() + seconds, 0
        while turns < 5 or time.perf_counter() < end:
            turns += 1
            for index, call in enumerate(calls):
                least[index] = [*map(min, least[index], timed(call))]
    return [least[0][0], least[1][0], least[0][1], least[1][1], error]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    chosen = parser.parse_args()
    limit_threads(chosen.threads)
    sys.path.insert(0, str(ROOT))
    print(
        "| model | CPU ms | of ONNX Runtime | ratio | wall ms | of ONNX Runtime | ratio | error |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    ratios: list[tuple[float, float]] = []
    for path in chosen.models:
        stored = chosen.inputs / f"{path.stem}.npz" if chosen.inputs else None
        a, b, c, d, error = compare(path, stored, chosen.threads, chosen.seconds)
        ratios.append((a / b, c / d))
        line = f"{a:.2f} | {b:.2f} | {a / b:.2f} | {c:.2f} | {d:.2f} | {c / d:.2f} | {error:.0e}"
        print(f"| {path.stem} | {line} |", flush=True)
    cpu, wall = (math.exp(sum(map(math.log, r)) / len(r)) for r in zip(*ratios, strict=True))
    worst = [f"{max(r):.2f}" for r in zip(*ratios, strict=True)]
    print(f"| geometric mean | | | {cpu:.2f} | | | {wall:.2f} | |")
    print(f"| worst | | | {worst[0]} | | | {worst[1]} | |")


if __name__ == "__main__":
    main()
