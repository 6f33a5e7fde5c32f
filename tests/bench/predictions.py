"""How predicted times of whole models compare with measured ones, and whether "auto" is right.

    python -m tests.bench.predictions [MODEL ...] [--threads 1] [--seconds 1] [--refresh]

Takes the real models of the tests, or those named. A model runs on the CPU, on the GPU and by
"auto", calls in turn; the least of each counts. With one thread (for BLAS and for software Vulkan)
the CPU time of the process is compared: the host waits for the device, so the two never overlap,
and what else the machine does hardly matters. With more threads it is the wall time. The profile is
measured under the same settings, or taken from the cache. `auto` is the time of the split that was
chosen over the better of the two others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ("cpu", "gpu", "auto")


def limit_threads(count: int) -> None:
    """Must run before NumPy is imported: OpenBLAS and Mesa read their settings when loaded."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "LP_NUM_THREADS"):
        os.environ[name] = str(count)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)


def measure(calls: Sequence[Callable[[], Any]], seconds: float, clock: str) -> list[float]:
    """The least milliseconds of each call, of calls in turn."""
    read = time.process_time if clock == "cpu" else time.perf_counter
    least = [float("inf")] * len(calls)
    end, turns = time.perf_counter() + seconds * len(calls), 0
    while turns < 3 or time.perf_counter() < end:
        turns += 1
        for index, call in enumerate(calls):
            before = read()
            call()
            least[index] = min(least[index], (read() - before) * 1e3)
    return least


def row(model: Any, seconds: float, clock: str, target: str | None) -> tuple[str, list[float]]:
    """A line of the table, and the figures: errors on the CPU and the GPU, and auto's ratio."""
    import engine

    feeds = model.inputs()
    sessions = [engine.InferenceSession(model.fetch(), device=d, target=target) for d in DEVICES]
    times = measure(
        [lambda s=s: s.run(None, feeds) for s in sessions],  # type: ignore[misc]
        seconds,
        clock,
    )
    parts = [s.plan(feeds).partition for s in sessions]
    predicted = [parts[2].all_cpu_ms, parts[1].predicted_ms]
    on_gpu = sum(v.device == "gpu" for v in parts[2].verdicts.values())
    for session in sessions:
        session.close()
    errors = [abs(p - t) / t for p, t in zip(predicted, times, strict=False)]
    ratio = times[2] / min(times[:2])
    columns = [f"{p:9.2f} {t:9.2f} {p / t:6.2f}" for p, t in zip(predicted, times, strict=False)]
    return (
        f"{model.name:22} {' '.join(columns)} {times[2]:9.2f} {ratio:6.2f} {on_gpu:6}",
        [*errors, ratio],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each model and device")
    parser.add_argument("--target", choices=("baseline", "adapter"))
    parser.add_argument("--refresh", action="store_true", help="measure the profile anew")
    chosen = parser.parse_args()
    limit_threads(chosen.threads)
    sys.path.insert(0, str(ROOT))
    from engine.runtime import calibrate
    from engine.runtime.device import open_device
    from tests.real_models import MODELS

    device = open_device(None, chosen.target)
    profile = calibrate.device_profile(device, refresh=chosen.refresh)
    print(profile.to_json())
    clock = "cpu" if chosen.threads == 1 and device.info.kind == "CPU" else "wall"
    what = "CPU time" if clock == "cpu" else "wall time"
    print(f"milliseconds of {what}, least of calls in turn")
    head = " ".join(f"{f'{d}: said':>9} {'took':>9} {'ratio':>6}" for d in ("cpu", "gpu"))
    print(f"{'model':22} {head} {'auto':>9} {'ratio':>6} {'on GPU':>6}", flush=True)
    found = []
    for model in MODELS:
        if not chosen.models or model.name in chosen.models:
            line, figures = row(model, chosen.seconds, clock, chosen.target)
            print(line, flush=True)
            found.append(figures)
    cpu, gpu, auto = zip(*found, strict=True)
    print(f"median error: CPU {statistics.median(cpu):.0%}, GPU {statistics.median(gpu):.0%}")
    print(f"auto over the better: median {statistics.median(auto):.2f}, worst {max(auto):.2f}")


if __name__ == "__main__":
    main()
