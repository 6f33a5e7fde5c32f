"""One model on all engines: processes that wait for their turn, checked before they are timed."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.ir import Array
from engine.tools.bench import largest_error
from tests.bench.peers import engines
from tests.bench.peers.engines import Peer

START_S, CALL_S, ONCE_S = 120.0, 40.0, 8.0
"""Most seconds for a start (shaders and conversions included), a call, and a call of `once`."""
TURN_MS, TURN_CALLS = 60.0, 20
MIN_TURNS, MAX_TURNS = 2, 12
SENSITIVE = 100
"""Two inputs must move an output by this many times the tolerance, or it says nothing."""

Found = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model to measure.

    Args:
        feeds: two different inputs; the first one is timed.
        tolerance: largest error over the largest magnitude, against ONNX Runtime's CPU provider.
    """

    name: str
    path: Path
    feeds: tuple[Mapping[str, Array], Mapping[str, Array]]
    outputs: tuple[str, ...]
    tolerance: float = 5e-4


class WorkerError(RuntimeError):
    """A peer's process failed, in one line."""


class Worker:
    """The process of a peer; answers one command at a time.

    Raises: WorkerError if the peer is not installed.
    """

    def __init__(
        self,
        peer: Peer,
        case: Case,
        folder: Path,
        setup: Setup,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        python = peer.python(setup.home)
        if python is None:
            raise WorkerError("not installed")
        options = {
            **peer.options,
            "threads": setup.threads,
            "outputs": case.outputs,
            "cache": str(setup.home / "models"),
            "pnnx": engines.pnnx(setup.home),
        }
        command = [python, engines.HERE / "worker.py", peer.kind, case.path, folder]
        self.peer = peer
        self.turns: list[Found] = []
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [*map(str, command), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=engines.variables(peer, setup.home, setup.threads) | dict(variables),
            cwd=folder,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def answer(self, limit_s: float) -> Found:
        """Its next answer. Raises: WorkerError if it fails, ends, or takes too long."""
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise WorkerError(f"no answer within {limit_s:g} s") from None
        if not line:
            raise WorkerError(self._last_words())
        found: Found = json.loads(line)
        if "error" in found:
            raise WorkerError(str(found["error"]))
        return found

    def ask(self, command: Mapping[str, Any], limit_s: float) -> Found:
        """The answer to a command; between commands the process is stopped, lest it spins.

        Raises: as `answer`.
        """
        self._signal("SIGCONT")
        try:
            return self._asked(command, limit_s)
        finally:
            self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        """Sends a signal that the system may not have, to a process that may have ended."""
        if hasattr(signal, name):
            self._process.send_signal(getattr(signal, name))

    def _asked(self, command: Mapping[str, Any], limit_s: float) -> Found:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerError(self._last_words()) from None
        return self.answer(limit_s)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        said = [line.strip() for line in self._log if line.strip()]
        return f"its process ended with status {status}: {said[-1] if said else 'no message'}"[:240]

    def leave(self, limit_s: float) -> None:
        """Lets the process end by itself, when it has written what it keeps for the next.

        Raises: WorkerError if it does not end in time.
        """
        assert self._process.stdin is not None
        self._signal("SIGCONT")
        self._process.stdin.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise WorkerError(f"did not end within {limit_s:g} s") from None

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()


@dataclass(frozen=True)
class Setup:
    """What all models of a run share."""

    home: Path
    threads: int
    peers: Sequence[Peer]


def contest(case: Case, setup: Setup, until: float, say: Callable[[str], None]) -> Found:
    """Measures a model on all peers; returns plain data.

    Args:
        until: `time.monotonic()` after which no further turn begins, once there were a few.
        say: is told what is being done.

    Raises: WorkerError if ONNX Runtime's CPU provider, which the others are checked against, can't
        run the model, or if its outputs do not depend on the inputs.
    """
    results: dict[str, Found] = {}
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="onnx-wgpu-") as name:
        folder = Path(name)
        store(case, folder)
        try:
            wanted = _start_reference(case, setup, folder, workers, results)
            for peer in setup.peers:
                if peer.name != engines.ORT_CPU:
                    say(f"{case.name}: {peer.name}")
                    results[peer.name] = _start(peer, case, setup, folder, workers, wanted)
            _take_turns(workers, case.name, until, say)
            for worker in workers:
                results[worker.peer.name] |= summary(worker.turns)
        finally:
            for worker in workers:
                worker.close()
    return {"model": case.name, "inputs": _shapes(case.feeds[0]), "peers": results}


def store(case: Case, folder: Path) -> None:
    """Writes the inputs where workers look for them."""
    for place, feeds in enumerate(case.feeds):
        np.savez(folder / f"feeds{place}.npz", **feeds)  # type: ignore[arg-type]


def _shapes(feeds: Mapping[str, Array]) -> str:
    return ", ".join(f"{a.dtype}{list(a.shape)}" for a in feeds.values())


def _start_reference(
    case: Case, setup: Setup, folder: Path, workers: list[Worker], results: dict[str, Found]
) -> list[dict[str, Array]]:
    """Outputs of ONNX Runtime's CPU provider for both inputs: those that the inputs move."""
    (peer,) = (p for p in engines.PEERS if p.name == engines.ORT_CPU)
    worker = Worker(peer, case, folder, setup)
    workers.append(worker)
    results[peer.name], outputs = _check(worker, folder)
    first, second = outputs
    moved = [
        n for n in first if largest_error([second[n]], [first[n]]) > SENSITIVE * case.tolerance
    ]
    if not moved:
        raise WorkerError(f"{case.name}: two inputs give outputs that hardly differ")
    results[peer.name]["error"] = 0.0
    return [{n: found[n] for n in moved} for found in outputs]


def _start(
    peer: Peer,
    case: Case,
    setup: Setup,
    folder: Path,
    workers: list[Worker],
    wanted: Sequence[Mapping[str, Array]],
) -> Found:
    """Starts a peer and compares its outputs; what is right joins `workers`."""
    try:
        worker = Worker(peer, case, folder, setup)
    except WorkerError as error:
        return {"problem": str(error)}
    try:
        result, outputs = _check(worker, folder)
        result["error"] = max(
            _error(found, right) for found, right in zip(outputs, wanted, strict=False)
        )
        if not result["error"] <= case.tolerance:
            result["problem"] = f"wrong: error {result['error']:.1e}"
    except WorkerError as error:
        result = {"problem": str(error)}
    if peer.once and "problem" not in result:
        result |= {"median_ms": result["first_ms"], "calls": 1}
    if peer.once or "problem" in result:
        worker.close()
    else:
        workers.append(worker)
    return result


def _check(worker: Worker, folder: Path) -> tuple[Found, list[dict[str, Array]]]:
    """Times of the start and the first call, and the outputs for each input."""
    result = worker.answer(START_S)
    outputs = []
    for place in range(1 if worker.peer.once else 2):
        file = folder / f"{worker.peer.name.replace(' ', '-').replace(',', '')}-{place}.npz"
        limit = ONCE_S if worker.peer.once else START_S
        answer = worker.ask({"do": "check", "feeds": place, "file": str(file)}, limit)
        result.setdefault("first_ms", answer["ms"])
        with np.load(file) as arrays:
            outputs.append({n: arrays[n] for n in arrays.files})
    return result, outputs


def _error(found: Mapping[str, Array], right: Mapping[str, Array]) -> float:
    """`largest_error`; shapes may differ by sizes of 1, which some peers leave out."""
    worst = 0.0
    for name, array in right.items():
        if name not in found or found[name].size != array.size:
            return float("inf")
        worst = max(worst, largest_error([found[name].reshape(array.shape)], [array]))
        if worst != worst:
            return float("inf")
    return worst


def _take_turns(workers: list[Worker], name: str, until: float, say: Callable[[str], None]) -> None:
    """Calls in turns; who begins changes. A peer that fails now is out, with what it has."""
    command = {"do": "call", "ms": TURN_MS, "most": TURN_CALLS}
    out: set[str] = set()
    for turn in range(MAX_TURNS):
        if turn >= MIN_TURNS and time.monotonic() > until:
            break
        say(f"{name}: turn {turn + 1}")
        first = turn % max(len(workers), 1)
        for worker in (*workers[first:], *workers[:first]):
            if worker.peer.name in out:
                continue
            try:
                worker.turns.append(worker.ask(command, CALL_S))
            except WorkerError as error:
                worker.turns.append({"problem": str(error)})
                out.add(worker.peer.name)


def summary(turns: Sequence[Found]) -> Found:
    """Median, p90 and least of the calls."""
    failed = [t["problem"] for t in turns if "problem" in t]
    if failed:
        return {"problem": failed[0]}
    wall: list[float] = []
    cpu: list[float] = []
    for turn in turns:
        wall += turn["wall_ms"]
        cpu += turn["cpu_ms"]
    return {
        "median_ms": float(np.median(wall)),
        "p90_ms": float(np.percentile(wall, 90)),
        "min_ms": min(wall),
        "cpu_ms": float(np.median(cpu)),
        "calls": len(wall),
        "peak_nbytes": turns[-1]["peak_nbytes"],
    }
