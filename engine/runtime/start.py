"""Start: what the first call of a session worked out, kept so that a later process need not.

A file of the cache holds the face of a model and the plans that were made, with folded and packed
weights, under a key of everything they depend on: the model's content, the code of the engine, the
options, the adapter with its driver and measured speed. A session that finds one loads no model and
runs no pass; it does so when a call comes that the plans don't fit. A file is written in a thread
once the first call is over.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache as memoised
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import serialize
from engine.dtypes import from_name, from_numpy
from engine.errors import PlanError
from engine.ir import Array, Graph
from engine.options import Options
from engine.plan import Derived, Packed, Plan
from engine.records import dataclass
from engine.runtime import cache
from engine.runtime.face import Face
from engine.runtime.prepared import Prepared, StoredPlan
from engine.tuning import Trial

if TYPE_CHECKING:
    from engine.passes import PipelineResult

log = logging.getLogger(__name__)

MAX_NBYTES = 256 << 20
"""Most bytes of arrays that are kept for one model."""
MAX_PLANS = 4
"""That are kept for one model, the last used ones."""
LATELY_S = 3.0
"""File systems know times of files to two seconds at worst."""
MIN_MODEL_NBYTES = 1 << 16
"""Models that are given as fewer bytes are not worth a file."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class Start:
    """What was kept of a session.

    Attributes:
        face: of its model.
        plans: that were made.
        names: the arrays in them, with what tells their contents apart.
    """

    face: Face
    plans: tuple[StoredPlan, ...]
    names: tuple[tuple[Array, str], ...]


def identity(model: object, now: float) -> str | None:
    """What tells a model's content apart; None if it is not worth a file, or nothing is kept.

    A file is taken to be the same as long as its path, size, times and first and last bytes are: or
    all bytes, if it was written so lately that its time may not tell two versions apart.

    Args:
        now: `time.time()`; the same again to ask whether a file is still what it was.
    """
    if cache.folder() is None:
        return None
    if isinstance(model, bytes):
        return cache.key(model) if len(model) >= MIN_MODEL_NBYTES else None
    if not isinstance(model, (str, os.PathLike)):
        return None
    try:
        path = Path(model).resolve(strict=True)
        state = path.stat()
        with path.open("rb") as file:
            if now - state.st_mtime < LATELY_S:
                return cache.key(str(path), file.read())
            ends = file.read(4096)
            file.seek(max(state.st_size - 4096, 0))
            ends += file.read(4096)
    except OSError:
        return None
    times = f"{state.st_mtime_ns} {state.st_ctime_ns}"
    return cache.key(str(path), f"{state.st_size} {times} {state.st_ino}", ends)


def name(identity: str, options: Options, *about: object) -> str | None:
    """Name of the file for a model and `about`: the adapter, its target and profile.

    None if nothing is kept: where the tuner tries styles of kernels, and a plan for other sizes
    would have it measure those.
    """
    if isinstance(options.tuning, Trial):
        return None
    try:
        text, _ = serialize.dump((options, *about))
    except serialize.NotSerializableError:
        return None
    return f"start-{cache.key(identity, _code(), np.__version__, text)}"


@memoised
def _code() -> str:
    """A hash that changes with the code: paths, sizes and times of all source files."""
    found = []
    for package in ("engine", "cpu_fallback", "shaders"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            found += [
                f"{package} {path.removeprefix(place)} {state.st_size} {state.st_mtime_ns}"
                for path, state in _sources(place)
            ]
    return hashlib.blake2b("\n".join(sorted(found)).encode(), digest_size=20).hexdigest()


def _sources(place: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in os.scandir(place):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry.path)
        elif entry.name.endswith((".py", ".wgsl", ".json")):
            yield entry.path, entry.stat()


def keep(name: str, face: Face, prepared: Sequence[Prepared]) -> None:
    """Has plans kept, as soon as the cache writes."""
    found = [(p.plan, p.key, p.passed, p.options, list(p.decided)) for p in prepared]
    cache.later(lambda: _write(name, face, found[:MAX_PLANS]))


def _write(name: str, face: Face, found: Sequence[tuple[Any, ...]]) -> None:
    plans = tuple(
        (_portable(plan), key, _texts(passed), options, decided)
        for plan, key, passed, options, decided in found
    )
    try:
        text, arrays = serialize.dump((face, plans))
    except serialize.NotSerializableError as error:
        log.info("the plans of %s are not kept: %s", face.graph.name, error)
        return
    if sum(a.nbytes for a in arrays) > MAX_NBYTES:
        log.info("the plans of %s are not kept: their weights are too large", face.graph.name)
        return
    offset, places = 0, []
    for array in arrays:
        places.append((from_numpy(array.dtype).name, array.shape, offset))
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    head = json.dumps([text, places]).encode()
    padding = -(len(head) + 8) % _ALIGNMENT
    parts: list[bytes | memoryview] = [
        (len(head) + padding).to_bytes(8, "little") + head + b" " * padding
    ]
    for array in arrays:
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        parts.append(bytes(-array.nbytes % _ALIGNMENT))
    cache.store(name, parts)


def _portable(plan: Plan) -> Plan:
    """The plan with the results of its derived constants in the place of how to make them."""
    derived = {}
    for key, found in plan.derived.items():
        source = plan.graph.constant(found.source)
        if source is None:
            raise PlanError(f"{key!r} is derived from {found.source!r}, which is not constant")
        derived[key] = Derived(found.source, found.recipe, Packed(found.make(source)))
    return dataclasses.replace(plan, derived=derived)


def _texts(passed: PipelineResult) -> tuple[Any, ...]:
    results = {k: (r.applied, r.near_misses, r.guards) for k, r in passed.results.items()}
    return results, passed.guards


def _passed(graph: Graph, texts: tuple[Any, ...]) -> PipelineResult:
    from engine.passes import PipelineResult
    from engine.passes.base import PassResult

    results, guards = texts
    return PipelineResult(graph, {k: PassResult(graph, *r) for k, r in results.items()}, guards)


def load(name: str) -> Start | None:
    """What was kept under a name; None if nothing was, or it is damaged."""
    content = cache.load(name)
    if content is None:
        return None
    try:
        length = int.from_bytes(content[:8], "little")
        text, places = json.loads(bytes(content[8 : 8 + length]))
        arrays = [_array(content[8 + length :], *place) for place in places]
        face, plans = serialize.load(text, arrays)
    except (serialize.DamagedError, ValueError, TypeError, KeyError) as error:
        log.warning("the plans in %s are not used: %s", name, error)
        return None
    names = tuple((array, f"{name} {number}") for number, array in enumerate(arrays))
    return Start(face, tuple(_kept(*plan) for plan in plans), names)


def _array(content: memoryview, dtype: str, shape: list[int], offset: int) -> Array:
    kind = from_name(dtype).numpy
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(content, kind, count, offset).reshape(shape)


def _kept(
    plan: Plan,
    key: tuple[Any, ...],
    texts: tuple[Any, ...],
    options: Options,
    decided: list[Mapping[str, int]],
) -> StoredPlan:
    return StoredPlan(plan, key, lambda: _passed(plan.graph, texts), options, decided)
