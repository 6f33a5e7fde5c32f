"""Slots: nothing alive together shares one, and the totals are what they claim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import dims
from engine.errors import PlanError
from engine.memory import Lifetime, MemoryPlan, assign

N = dims.symbol("n")
M = dims.symbol("m")


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    count = draw(st.integers(0, 14))
    found = []
    for i in range(count):
        first = draw(st.integers(0, 10))
        size = draw(st.integers(0, 60))
        symbol = draw(st.sampled_from([1, N, M, N * 2 + 1, dims.dmax(N, M)]))
        last = first + draw(st.integers(0, 6))
        found.append(Lifetime(f"v{i}", first, last, size * symbol))
    return found


def check(values: list[Lifetime], plan: MemoryPlan, binding: dict[str, int]) -> None:
    by_name = {v.name: v for v in values}
    assert plan.slot_of.keys() == by_name.keys()
    assert [s.index for s in plan.slots] == list(range(len(plan.slots)))
    for slot in plan.slots:
        held = [by_name[name] for name in slot.values]
        assert all(plan.slot_of[v.name] == slot.index for v in held)
        for step in range(20):
            assert sum(v.first <= step <= v.last for v in held) <= 1, (slot, step)
        assert slot.size(binding) == max(dims.evaluate(v.nbytes, binding) for v in held)


@given(values=lifetimes(), n=st.integers(0, 9), m=st.integers(0, 9), other=st.integers(0, 9))
def test_no_overlap_in_a_slot(values: list[Lifetime], n: int, m: int, other: int) -> None:
    binding = {"n": n, "m": m}
    plan = assign(values, binding)
    check(values, plan, binding)
    check(values, plan, {"n": m, "m": other})
    sizes = {v.name: dims.evaluate(v.nbytes, binding) for v in values}
    alive = [sum(sizes[v.name] for v in values if v.first <= t <= v.last) for t in range(20)]
    assert plan.lower_bound_nbytes == max(alive)
    assert plan.no_reuse_nbytes == sum(sizes.values())
    assert plan.peak_nbytes == sum(s.size(binding) for s in plan.slots)
    assert plan.lower_bound_nbytes <= plan.peak_nbytes <= plan.no_reuse_nbytes


def test_a_chain_takes_two_slots() -> None:
    values = [Lifetime(f"v{i}", i, i + 1, 100) for i in range(10)]
    plan = assign(values)
    assert plan.peak_nbytes == plan.lower_bound_nbytes == 200
    assert plan.no_reuse_nbytes == 1000


def test_touching_lives_do_not_share() -> None:
    plan = assign([Lifetime("read", 0, 3, 8), Lifetime("written", 3, 4, 8)])
    assert plan.slot_of["read"] != plan.slot_of["written"]
    plan = assign([Lifetime("read", 0, 3, 8), Lifetime("later", 4, 4, 8)])
    assert plan.slot_of["read"] == plan.slot_of["later"]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        # by size 10, by time 14
        ([("a", 3, 5, 1), ("b", 4, 4, 9), ("c", 0, 0, 5)], 10),
        # by size 12, by time 10
        ([("a", 1, 3, 3), ("b", 0, 0, 6), ("c", 3, 4, 4), ("d", 0, 1, 3)], 10),
        ([("a", 0, 0, 1), ("b", 1, 1, 2), ("c", 2, 2, 3)], 3),
    ],
)
def test_the_better_order_is_kept(values: list[tuple[str, int, int, int]], best: int) -> None:
    assert assign([Lifetime(*v) for v in values]).peak_nbytes == best


def test_a_slot_keeps_only_sizes_that_can_be_the_largest() -> None:
    values = [
        Lifetime("a", 0, 0, N * 4),
        Lifetime("b", 1, 1, N * 4 + 8),
        Lifetime("c", 2, 2, M * 4),
        Lifetime("d", 3, 3, 4),
    ]
    (slot,) = assign(values, {"n": 1, "m": 1}).slots
    assert set(slot.nbytes) == {N * 4 + 8, M * 4}
    assert slot.size({"n": 3, "m": 1}) == 20
    assert slot.size({"n": 3, "m": 9}) == 36


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([Lifetime("a", 0, 1, 4), Lifetime("a", 2, 3, 4)], "'a' has two lifetimes"),
        ([Lifetime("a", 3, 1, 4)], "before step 3 writes it"),
        ([Lifetime("a", 0, 1, N - 100)], "a size of"),
    ],
)
def test_broken_lives_are_refused(values: list[Lifetime], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        assign(values, {"n": 1})


def test_nothing_takes_nothing() -> None:
    plan = assign([])
    assert (plan.peak_nbytes, plan.lower_bound_nbytes, plan.slots) == (0, 0, ())
