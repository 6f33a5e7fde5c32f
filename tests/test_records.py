"""Frozen classes of `engine.records` are what `dataclasses` would have made of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from engine import records


@records.dataclass(frozen=True)
class Point:
    """A record with every kind of field."""

    x: int
    note: str = field(default="n", compare=False)
    tags: list[str] = field(default_factory=list)
    hidden: int = field(default=0, repr=False)


@records.dataclass(frozen=True)
class Marked(Point):
    mark: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


@records.dataclass(frozen=True)
class Single:
    value: object


@records.dataclass(frozen=True)
class Empty:
    pass


@records.dataclass(frozen=True, eq=False)
class Thing:
    name: str

    def __repr__(self) -> str:
        return "a thing"


@records.dataclass
class Counter:
    count: int = 0


def test_made_as_it_says() -> None:
    assert Point(1) == Point(x=1, note="other", tags=[], hidden=0)
    assert Point(1) != Point(2) and Point(1) != Point(1, tags=["a"]) and Point(1) != Marked(1)
    assert Point(1).tags is not Point(1).tags
    assert repr(Marked(1, "m", ["t"], 5, (2,))) == "Marked(x=1, note='m', tags=['t'], mark=(2,))"
    assert Point.__doc__ == "A record with every kind of field."
    for wrong in (lambda: Point(), lambda: Point(1, y=2), lambda: Point(1, "", [], 0, 0)):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
            wrong()
    with pytest.raises(ValueError, match="negative"):
        Marked(-1)


def test_nothing_can_be_changed() -> None:
    point: Any = Point(1)
    with pytest.raises(FrozenInstanceError, match="'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="'x'"):
        del point.x
    assert point.x == 1


def test_equal_records_have_equal_hashes() -> None:
    assert hash(Single(3)) == hash(Single(3)) and len({Single(3), Single(3), Single(4)}) == 2
    assert Empty() == Empty() and len({Empty(), Empty()}) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))
    one, other = Thing("a"), Thing("a")
    assert one != other and len({one, other}) == 2 and repr(one) == "a thing"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_the_rest_of_dataclasses_takes_them(again: Callable[[Marked], Marked]) -> None:
    marked = Marked(1, mark=(2, 3))
    assert again(marked) == marked
    assert dataclasses.is_dataclass(Marked)
    assert [f.name for f in dataclasses.fields(marked)] == ["x", "note", "tags", "hidden", "mark"]
    assert dataclasses.replace(marked, x=5) == Marked(5, mark=(2, 3))
    assert dataclasses.asdict(Single([Single(1)])) == {"value": [{"value": 1}]}
    match marked:
        case Marked(x, _, _, _, mark):
            assert (x, mark) == (1, (2, 3))


def test_what_is_not_frozen_is_as_ever() -> None:
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
