"""The collector, held back while sessions are made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from engine.runtime.garbage import held_back


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
