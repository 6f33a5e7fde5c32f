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
        empty, device_s = _start(peer, case, setup, folder, caches)
        warm, again_s = _start(peer, case, setup, folder, caches)
        if device_s is None or again_s is None:
            one = folder / "one_node.onnx"
            one.write_bytes(_one_node())
            device_s = again_s = _created_s(peer, replace(case, path=one), setup, folder, caches)
    return {"empty_s": empty - device_s, "warm_s": warm - again_s, "device_s": again_s}


def _start(
    peer: Peer, case: Case, setup: Setup, folder: Path, caches: dict[str, str]
) -> tuple[float, float | None]:
    """Seconds up to the first result, and those of making the device, if the engine tells."""
    store(case, folder)
    worker = Worker(peer, case, folder, setup, caches)
    try:
        told = worker.answer(START_S)
        file = str(folder / "found.npz")
        first = worker.ask({"do": "check", "feeds": 0, "file": file}, START_S)
        worker.leave(START_S)
    finally:
        worker.close()
    return told["import_s"] + told["create_s"] + first["ms"] / 1e3, told.get("device_s")


def _created_s(peer: Peer, case: Case, setup: Setup, folder: Path, caches: dict[str, str]) -> float:
    worker = Worker(peer, case, folder, setup, caches)
    try:
        return float(worker.answer(START_S)["create_s"])
    finally:
        worker.close()


def _one_node() -> bytes:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> one (float[4] x) => (float[4] y) { y = Relu(x) }'
    ).SerializeToString()
