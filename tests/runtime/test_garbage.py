"""The collector: held back while sessions are made, and not needed when they go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.runtime.device import Device
from engine.runtime.garbage import held_back
from engine.runtime.session import InferenceSession
from tests.runtime.models import noise, parse


class Thing:
    """Something that the collector looks after."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def generation(thing: Thing) -> int:
    return next(
        number for number in range(3) if any(o is thing for o in gc.get_objects(generation=number))
    )


def test_nothing_is_collected_inside_and_what_was_made_there_is_old() -> None:
    with held_back():
        assert not gc.isenabled()
        thing = Thing()
        assert generation(thing) == 0
    assert gc.isenabled()
    assert generation(thing) == 2
    assert generation(Thing()) == 0


def test_garbage_from_inside_goes_with_a_full_collection() -> None:
    with held_back():
        gone = weakref.ref(Thing())
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with held_back():
        thing = Thing()
    assert not gc.isenabled()
    assert generation(thing) == 0


def test_what_the_caller_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with held_back():
        thing = Thing()
    assert gc.get_freeze_count() >= frozen
    assert generation(thing) == 0


BRANCHES = """g (bool c, float[n,2] x) => (float[n,2] y) <float[2,2] w = {1, 2, 3, 4}> {
  h = MatMul(x, w)
  y = If(c) <
    then_branch = a () => (float[n,2] p) { p = Softmax(h) },
    else_branch = b () => (float[n,2] q) { q = MatMul(h, w) }
  >
}"""


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_what_a_session_holds_goes_with_it(
    device: str, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the collector does not know how much memory hangs on a few objects."""
    buffers, plain = [], Device.buffer

    def buffer(self: Device, label: str, *arguments: Any) -> Any:
        made = plain(self, label, *arguments)
        if label in ("constant", "params") or label.startswith("slot"):
            buffers.append(weakref.ref(made))
        return made

    monkeypatch.setattr(Device, "buffer", buffer)
    gc.disable()
    session = InferenceSession(parse(BRANCHES), device=device)
    for condition in (True, False):
        session.run(None, {"c": np.array(condition), "x": noise(3, 2)})
    weights = weakref.ref(session.plan().graph.constant("w"))
    assert weights() is not None
    assert len(buffers) >= (5 if device == "gpu" else 0)
    if closed:
        session.close()
    else:
        del session
        assert weights() is None
    assert not any(found() for found in buffers)


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_sessions_leave_the_collector_nothing(device: str) -> None:
    for _ in range(2):
        gc.collect()
        gc.disable()
        session = InferenceSession(parse(BRANCHES), device=device)
        session.run(None, {"c": np.array(True), "x": noise(3, 2)})
        del session
    assert gc.collect() < 20
