"""Binding: the numbers of a call are what the expressions of its plan say."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from engine.bind import PARAMS_ALIGNMENT, Binder, Bound
from engine.checks import LimitError
from engine.compiler import compile_graph, optimise
from engine.costs import DeviceProfile
from engine.dims import Guard, at_least, evaluate, symbol, symbols_of
from engine.errors import PlanError
from engine.importer import load_model
from engine.options import Options
from engine.plan import Plan, epochs
from engine.planner import Written
from engine.shader import Kernel
from engine.target import Target
from tests.runtime.models import parse

MODEL = """g (float[n,m] x, float[m,k] w, float[n,m] mask)
=> (float[n,k] y, float[n,k] z, int64[2] s) {
  a = Add(x, mask)
  p = MatMul(a, w)
  y = LeakyRelu <alpha = 0.25> (p)
  t = Softmax(y)
  z = Sub(t, y)
  s = Shape(p)
}"""
SIZES = [(1, 1, 1), (3, 4, 8), (37, 113, 5), (64, 64, 64), (2, 0, 3), (0, 5, 4), (1, 1000, 7)]


def planned(
    text: str,
    binding: dict[str, int],
    target: Target | None = None,
    guards: Sequence[Guard] = (),
    written: Written = lambda kernel: None,
) -> Plan:
    options = Options("gpu")
    passed = optimise(load_model(parse(text)).graph, options, binding)
    passed = dataclasses.replace(passed, guards=(*passed.guards, *guards))
    chosen = target or Target.baseline()
    profile = DeviceProfile.builtin()
    return compile_graph(passed, options, chosen, profile, binding, written=written)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(MODEL, {"n": 3, "m": 4, "k": 8})


def binding(sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip("nmk", sizes, strict=True))


def words(plan: Plan, binder: Binder, bound: Bound, index: int, choice: int) -> bytes:
    """The uniform words of a variant, as bytes."""
    start = binder.params_offsets[index, choice] - bound.params_offset
    count = len(plan.dispatches[index].variants[choice].params)
    return bound.params[start : start + 4 * count]


@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_are_told_as_they_are_written_and_are_those_that_a_call_runs(
    sizes: tuple[int, ...],
) -> None:
    told: list[Kernel] = []
    plan = planned(MODEL, binding(sizes), written=told.append)
    bound = Binder(plan).bind(0, binding(sizes))
    chosen = [plan.dispatches[i].variants[c.variant].kernel for i, c in bound.chosen.items()]
    assert told == [plan.kernels[k] for k in chosen]
    assert set(told) < set(plan.kernels)


def test_no_kernel_is_told_of_a_plan_that_does_not_fit() -> None:
    told: list[Kernel] = []
    unfit = at_least(symbol("n"), 4, "n is large")
    plan = planned(MODEL, binding((3, 4, 8)), guards=[unfit], written=told.append)
    assert unfit in plan.guards
    assert plan.kernels
    assert not told


@pytest.mark.parametrize("sizes", SIZES)
def test_every_number_is_what_its_expression_says(plan: Plan, sizes: tuple[int, ...]) -> None:
    at = binding(sizes)
    binder = Binder(plan)
    bound = binder.bind(0, at)
    assert bound.chosen.keys() == set(range(len(plan.dispatches)))
    for index, dispatch in enumerate(plan.dispatches):
        chosen = bound.chosen[index]
        holding = [all(g.holds(at) for g in v.when) for v in dispatch.variants]
        assert chosen.variant == holding.index(True)
        variant = dispatch.variants[chosen.variant]
        grid = tuple(evaluate(d, at) for d in variant.grid)
        assert chosen.grid == (grid if all(grid) else None)
        for choice, other in enumerate(dispatch.variants):
            kinds = [kind for _, kind in plan.kernels[other.kernel].params]
            want = b"".join(
                struct.pack("<f", p)
                if kind == "f32"
                else struct.pack("<I", evaluate(p, at) & 0xFFFFFFFF)  # type: ignore[arg-type]
                for p, kind in zip(other.params, kinds, strict=True)
            )
            assert words(plan, binder, bound, index, choice) == want
    for name, slot in plan.memory.slot_of.items():
        nbytes = evaluate(plan.storages[name].nbytes(plan.shape(name)), at)
        assert bound.slot_nbytes[slot] >= nbytes
    for name in (*plan.graph.inputs, "y", "z"):
        assert bound.shapes[name] == tuple(evaluate(d, at) for d in plan.shape(name))
    np.testing.assert_array_equal(bound.sizes["s"], [at["n"], at["k"]])
    assert bound.sizes["s"].dtype == np.int64


def test_uniform_blocks_are_aligned_and_apart(plan: Plan) -> None:
    binder = Binder(plan)
    offsets = sorted(binder.params_offsets.values())
    assert len(set(offsets)) == len(offsets) == sum(len(d.variants) for d in plan.dispatches)
    assert all(offset % PARAMS_ALIGNMENT == 0 for offset in offsets)
    ends = {
        binder.params_offsets[i, c] + 4 * len(v.params)
        for i, d in enumerate(plan.dispatches)
        for c, v in enumerate(d.variants)
    }
    assert max(ends) <= binder.params_nbytes
    assert len(binder.bind(0, binding((1, 1, 1))).params) == binder.params_nbytes


def test_equal_sizes_give_equal_numbers(plan: Plan) -> None:
    first = Binder(plan).bind(0, binding((5, 6, 7)))
    other = Binder(plan)
    other.bind(0, binding((9, 9, 9)))
    second = other.bind(0, binding((5, 6, 7)))
    assert (first.chosen, first.params) == (second.chosen, second.params)
    assert first.slot_nbytes == second.slot_nbytes


def test_time_is_predicted_from_the_sizes(plan: Plan) -> None:
    binder = Binder(plan)
    small, large = (binder.bind(0, binding(s)).chosen for s in ((8, 8, 8), (800, 80, 80)))
    launch = plan.profile.gpu.launch_ns
    for index in small:
        assert launch <= small[index].predicted_ns < large[index].predicted_ns


def test_a_size_without_a_step_that_binds_it_is_an_error(plan: Plan) -> None:
    binder = Binder(plan)
    with pytest.raises(KeyError):
        binder.bind(0, {"n": 1, "m": 1})
    with pytest.raises(PlanError, match="no step binds k"):
        Binder(dataclasses.replace(plan, symbols=("n", "m")))


def test_guards_are_one_table() -> None:
    binder = Binder(planned(MODEL, {"n": 3, "m": 4, "k": 8}))
    assert binder.guards.broken(binding((3, 4, 8))) == []
    huge = binding((1 << 15, 1 << 15, 1))
    broken = binder.guards.broken(huge)
    assert broken and all(not g.holds(huge) for g in broken)
    assert all(g.holds(huge) for g in binder.guards.guards if g not in broken)


def test_limits_name_the_nodes_and_the_numbers() -> None:
    tight = planned(
        "g (float[n] x) => (float[n] y) { y = Exp(x) }",
        {"n": 3},
        Target(max_compute_workgroups_per_dimension=2),
    )
    binder = Binder(tight)
    assert binder.bind(0, {"n": 512}).chosen[0].grid is not None
    with pytest.raises(LimitError, match=r"workgroups are needed, a dimension holds 2") as caught:
        binder.bind(0, {"n": 10_000})
    assert caught.value.nodes == ("y",)


def test_sizes_that_data_decide_are_bound_by_epochs() -> None:
    text = """g (float[n] x, bool[n] keep) => (float[k] y, float[j] z) {
      e = Exp(x)
      c = Compress <axis = 0> (e, keep)
      y = Sqrt(c)
      level = Constant <value_float = 0.5> ()
      big = Greater(y, level)
      d = Compress <axis = 0> (y, big)
      z = Neg(d)
    }"""
    plan = planned(text, {"n": 8})
    numbers = epochs(plan.symbols, plan.steps)
    assert sorted(numbers.values()) == [0, 1, 2]
    binder = Binder(plan)
    at: dict[str, int] = {}
    seen: set[int] = set()
    for number, size in enumerate((8, 5, 2)):
        (symbol,) = (s for s, epoch in numbers.items() if epoch == number)
        at[symbol] = size
        bound = binder.bind(number, at)
        assert not seen & bound.chosen.keys()
        seen |= bound.chosen.keys()
        for name, slot in plan.memory.slot_of.items():
            shape = plan.shape(name)
            if symbol in frozenset().union(*map(symbols_of, shape)):
                nbytes = evaluate(plan.storages[name].nbytes(shape), at)
                assert bound.slot_nbytes[slot] >= nbytes
    assert seen == set(range(len(plan.dispatches)))


def test_no_slot_is_shared_by_values_of_two_epochs() -> None:
    text = """g (float[n] x, bool[n] keep) => (float[k] y) {
      a = Exp(x) b = Softmax(a) c = Compress <axis = 0> (b, keep) d = Softmax(c) y = Softmax(d)
    }"""
    plan = planned(text, {"n": 8})
    numbers = epochs(plan.symbols, plan.steps)
    for slot in plan.memory.slots:
        found = {
            max((numbers[s] for d in plan.shape(v) for s in symbols_of(d)), default=0)
            for v in slot.values
        }
        assert len(found) == 1, slot.values
