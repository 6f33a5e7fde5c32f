"""Start of a process until its first result, by the clock, and the memory that it took.

Run as a module, it is that process: it reads a request, makes one session and prints what it saw.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.records import dataclass

CACHES = {
    "XDG_CACHE_HOME": "cache",
    "LOCALAPPDATA": "cache",
    "MESA_SHADER_CACHE_DIR": "mesa",
    "__GL_SHADER_DISK_CACHE_PATH": "nvidia",
}
"""Variables that move the caches of this engine and of drivers, and a folder for each."""

CALLS = 3
"""Calls after which the peak of memory is read."""


@dataclass(frozen=True)
class Start:
    """A process up to its first result.

    Attributes:
        total_ms: from its start to the first result.
        import_ms, create_ms, first_ms: of that, importing, making the session, the first call.
        peak_nbytes: most memory that the process had resident; None where that is not told.
    """

    total_ms: float
    import_ms: float
    create_ms: float
    first_ms: float
    peak_nbytes: int | None


def starts(
    kind: str, model: str, arguments: Mapping[str, Any], feeds: Mapping[str, Any]
) -> tuple[Start, Start]:
    """A start with empty caches, and one with what the first left in them.

    The caches are those of this engine (profiles of adapters) and of the drivers that can be told
    where to keep theirs (Mesa, NVIDIA); files stay in the memory of the operating system.

    Args:
        kind: "onnxruntime", or a device of this engine.
        arguments: of `InferenceSession`.
        feeds: inputs of the call.

    Raises: EngineError if a process fails, with its last line.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-wgpu-") as folder:
        request = Path(folder, "request")
        request.write_bytes(pickle.dumps((kind, model, dict(arguments), dict(feeds))))
        moved = {name: str(Path(folder, part)) for name, part in CACHES.items()}
        for path in moved.values():
            Path(path).mkdir(exist_ok=True)
        environment = {**os.environ, **moved}
        cold, warm = (_start(request, environment, kind) for _ in range(2))
    return cold, warm


def _start(request: Path, environment: Mapping[str, str], kind: str) -> Start:
    command = [sys.executable, "-m", "engine.tools.bench_start", str(request)]
    with tempfile.TemporaryFile("w+") as log:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(environment)
        )
        with process:
            try:
                assert process.stdout is not None
                first = process.stdout.readline()
                total_ms = (time.perf_counter() - begin) * 1e3
                rest = process.stdout.read()
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        said = log.read().strip().splitlines()
    if process.returncode or not rest:
        why = said[-1] if said else f"exit status {process.returncode}"
        raise EngineError(f"the cold start with device={kind!r} failed: {why}")
    return Start(total_ms, **json.loads(first), **json.loads(rest))


def resident_peak() -> int | None:
    """Most bytes that this process had in memory; None where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    try:
        resource: Any = import_module("resource")
    except ImportError:
        return None
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def serve(request: Path) -> None:
    """Does what a request asks for, and writes two lines of JSON: times, then memory."""
    begin = time.perf_counter()
    kind, model, arguments, feeds = pickle.loads(request.read_bytes())
    session: Any
    if kind == "onnxruntime":
        runtime = import_module("onnxruntime")
        imported = time.perf_counter()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    else:
        from engine.runtime.session import InferenceSession

        imported = time.perf_counter()
        session = InferenceSession(model, **arguments)
    created = time.perf_counter()
    session.run(None, feeds)
    done = time.perf_counter()
    stages = (begin, imported, created, done)
    spent = [(b - a) * 1e3 for a, b in pairwise(stages)]
    _tell(dict(zip(("import_ms", "create_ms", "first_ms"), spent, strict=True)))
    for _ in range(CALLS - 1):
        session.run(None, feeds)
    _tell({"peak_nbytes": resident_peak()})


def _tell(found: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        serve(Path(sys.argv[1]))
    except (EngineError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
