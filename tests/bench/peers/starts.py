"""Starts of new processes: with empty caches of shaders and plans, and with what the first left."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx

from engine.tools.bench_start import CACHES
from tests.bench.peers.contest import START_S, Case, Found, Setup, Worker, WorkerError, store
from tests.bench.peers.engines import GPU, ORT_WEBGPU, Peer

LONG_S = 1.0
"""Models that ONNX Runtime starts sooner say little of compiling."""


def cold_starts(case: Case, setup: Setup, say: Callable[[str], None]) -> Found:
    """Seconds up to the first result of this engine and of ONNX Runtime's WebGPU provider.

    Counted are importing the engine, making the session, and the first call; not the interpreter's
    start, and not making the device. ONNX Runtime makes that with the session: what a session for
    one node takes stands for it.

    Returns: by engine, `empty_s`, `warm_s` and `device_s`; nothing if ONNX Runtime is not there,
        fails, or needs no `LONG_S`.
    """
    peers = {p.name: p for p in setup.peers}
    if not {GPU, ORT_WEBGPU} <= peers.keys() or peers[ORT_WEBGPU].python(setup.home) is None:
        return {}
    say(f"{case.name}: starts with empty and warm caches")
    try:
        theirs = _starts(peers[ORT_WEBGPU], case, setup)
        if theirs["empty_s"] <= LONG_S:
            return {}
        return {GPU: _starts(peers[GPU], case, setup), ORT_WEBGPU: theirs}
    except WorkerError as error:
        say(f"{case.name}: {error}")
        return {}


def _starts(peer: Peer, case: Case, setup: Setup) -> Found:
    with tempfile.TemporaryDirectory(prefix="onnx-wgpu-") as name:
        folder = Path(name)
        caches = {variable: str(folder / part) for variable, part in CACHES.items()}
        for path in caches.values():
            Path(path).mkdir(exist_ok=True)
        store(case, folder)
        empty = _start(peer, case, setup, folder, caches)
        warm = _start(peer, case, setup, folder, caches)
        if "device_s" not in empty or "device_s" not in warm:
            one = folder / "one_node.onnx"
            one.write_bytes(_one_node())
            alone = _start(peer, replace(case, path=one), setup, folder, caches, called=False)
            empty["device_s"] = warm["device_s"] = alone["create_s"]
    return {
        "empty_s": _up_to_result(empty) - empty["device_s"],
        "warm_s": _up_to_result(warm) - warm["device_s"],
        "device_s": warm["device_s"],
    }


def _up_to_result(took: dict[str, float]) -> float:
    return took["import_s"] + took["create_s"] + took["call_s"]


def _start(
    peer: Peer,
    case: Case,
    setup: Setup,
    folder: Path,
    caches: dict[str, str],
    called: bool = True,
) -> dict[str, float]:
    """Seconds that a new worker takes, by step: `import_s`, `create_s`, and `call_s` where it is
    called with the inputs in `folder`; `device_s` of making the device, if the engine tells."""
    worker = Worker(peer, case, folder, setup, caches)
    try:
        told = worker.answer(START_S)
        took = {k: float(told[k]) for k in ("import_s", "create_s", "device_s") if k in told}
        if called:
            file = str(folder / "found.npz")
            first = worker.ask({"do": "check", "feeds": 0, "file": file}, START_S)
            took["call_s"] = first["ms"] / 1e3
            worker.leave(START_S)
        return took
    finally:
        worker.close()


def _one_node() -> bytes:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> one (float[4] x) => (float[4] y) { y = Relu(x) }'
    ).SerializeToString()
