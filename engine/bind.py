"""Bind: a plan and the sizes of a call to the numbers that the runner needs.

Every size, grid, parameter and guard of a plan is evaluated through one table per epoch. Epoch 0
holds what the inputs' shapes decide; each `Bind` step in the plan starts another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine import costs
from engine.checks import Check, GuardTable, LimitError
from engine.dims import Dim, Table, symbols_of
from engine.errors import PlanError, ShapeError
from engine.ir import Array
from engine.plan import Dispatch, Plan, epochs
from engine.schedule import Bind, Download, Upload

PARAMS_ALIGNMENT = 256

MAX_REPEATS = 4096
"""Most repetitions of a dispatch."""


class Chosen(NamedTuple):
    """What a dispatch does in a call.

    Attributes:
        variant: index of the alternative that runs.
        grid: workgroups; None where there is nothing to do.
        repeats: how often it is dispatched.
        predicted_ns: of one repetition.
    """

    variant: int
    grid: tuple[int, int, int] | None
    repeats: int
    predicted_ns: int


_Variants = list[tuple[tuple[tuple[int, bool], ...], tuple[int, ...], int, int]]
"""Places in the table: guards (and whether they must be zero), grid, loop trips, repetitions."""


@dataclass
class Bound:
    """The numbers of one epoch.

    Attributes:
        chosen: for each dispatch of the epoch, by its index in `Plan.dispatches`.
        params: bytes of the uniform buffer from `params_offset` on.
        slot_nbytes: least size of each slot that the epoch needs.
        sizes: contents of the values that are written when bound.
        shapes: shape of each value that crosses, is a view, or is an output.
    """

    chosen: dict[int, Chosen]
    params: bytes
    params_offset: int
    slot_nbytes: dict[int, int]
    sizes: dict[str, Array]
    shapes: dict[str, tuple[int, ...]]


class Binder:
    """Evaluates a plan's tables; made once per plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.epoch_of_symbol = epochs(plan.symbols, plan.steps)
        self.epochs = [_Epoch() for _ in range(1 + sum(isinstance(s, Bind) for s in plan.steps))]
        self.params_offsets: dict[tuple[int, int], int] = {}
        self.guards = GuardTable(plan.guards)
        self._place_dispatches()
        self._place_values()
        for check in plan.checks:
            self.epochs[self._epoch(check.guard.expr)].add_check(check)
        offset = 0
        for epoch in self.epochs:
            epoch.offset = offset
            offset += epoch.finish()
        self.params_nbytes = offset
        for (index, choice), start in list(self.params_offsets.items()):
            epoch = self.epochs[self._numbers[index]]
            self.params_offsets[index, choice] = epoch.offset + start

    def _epoch(self, *dims: Dim) -> int:
        symbols = frozenset().union(*map(symbols_of, dims)) if dims else frozenset()
        unknown = symbols - self.epoch_of_symbol.keys()
        if unknown:
            raise PlanError(f"no step binds {', '.join(sorted(unknown))}")
        return max((self.epoch_of_symbol[s] for s in symbols), default=0)

    def _place_dispatches(self) -> None:
        self._numbers: list[int] = []
        for index, dispatch in enumerate(self.plan.dispatches):
            dims: list[Dim] = []
            for variant in dispatch.variants:
                dims += [*variant.grid, variant.trips, variant.repeat]
                dims += [g.expr for g in variant.when]
                dims += [p for p in variant.params if not isinstance(p, float)]
            dims += [dispatch.flops, dispatch.nbytes]
            self._numbers.append(self._epoch(*dims))
            epoch = self.epochs[self._numbers[index]]
            for choice, variant in enumerate(dispatch.variants):
                kernel = self.plan.kernels[variant.kernel]
                kinds = [kind for _, kind in kernel.params]
                self.params_offsets[index, choice] = epoch.add_params(variant.params, kinds)
            epoch.add_dispatch(index, dispatch)

    def _place_values(self) -> None:
        plan = self.plan
        for name, slot in plan.memory.slot_of.items():
            nbytes = plan.storages[name].nbytes(plan.shape(name))
            self.epochs[self._epoch(nbytes)].add_slot(slot, nbytes)
        for name in _shaped(plan):
            tensor = plan.scratch.get(name) or plan.graph.tensor(name)
            if tensor is None or tensor.shape is None:
                continue
            symbols = frozenset().union(*map(symbols_of, tensor.shape), frozenset())
            if symbols <= self.epoch_of_symbol.keys():
                self.epochs[self._epoch(*tensor.shape)].add_shape(name, tensor.shape)
        for name in plan.sizes:
            dims = plan.graph.values[name].dims
            if dims is not None:
                tensor = plan.tensor(name)
                flat = tuple(dims.reshape(-1))
                epoch = self.epochs[self._epoch(*flat)]
                epoch.add_sizes(name, flat, dims.shape, tensor.dtype.numpy)

    def bind(self, number: int, binding: Mapping[str, int]) -> Bound:
        """The numbers of epoch `number`.

        Raises: LimitError if a check fails or a device limit would be broken.
        """
        epoch = self.epochs[number]
        return epoch.evaluate(self.plan, binding)


def _integers(name: str, values: list[int], dtype: np.dtype) -> Array:
    """The content of a value that is worked out from sizes. Raises: ShapeError if it overflows."""
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise ShapeError(f"{name!r} is computed from sizes: {dtype} can't hold {values}") from None


def _shaped(plan: Plan) -> set[str]:
    """The values whose shapes a run asks for."""
    names = {*plan.roots, *plan.roots.values(), *plan.graph.outputs, *plan.graph.inputs}
    names.update(s.value for s in plan.steps if isinstance(s, (Download, Upload)))
    return names


class _Epoch:
    """Places in one table for all dims that are known at the same time."""

    def __init__(self) -> None:
        self.offset = 0
        self.dims: list[Dim] = []
        self.places: dict[Dim, int] = {}
        self.params_nbytes = 0
        self.words: list[tuple[int, int]] = []
        self.floats: list[tuple[int, float]] = []
        self.checks: list[tuple[int, Check]] = []
        self.dispatches: list[tuple[int, Dispatch, _Variants, tuple[int, int]]] = []
        self.slots: dict[int, dict[int, None]] = {}
        self.shapes: list[tuple[str, tuple[int, ...]]] = []
        self.sizes: list[tuple[str, tuple[int, ...], tuple[int, ...], np.dtype]] = []

    def place(self, dim: Dim) -> int:
        if dim not in self.places:
            self.places[dim] = len(self.dims)
            self.dims.append(dim)
        return self.places[dim]

    def add_params(self, params: tuple[Dim | float, ...], kinds: list[str]) -> int:
        """Adds one uniform block; returns its offset within the epoch."""
        start = self.params_nbytes
        for index, (value, kind) in enumerate(zip(params, kinds, strict=True)):
            word = start // 4 + index
            if isinstance(value, float):
                self.floats.append((word, value))
            elif kind == "f32":
                raise PlanError("a float parameter must be given as a float")
            else:
                self.words.append((word, self.place(value)))
        self.params_nbytes += -(-max(len(params), 1) * 4 // PARAMS_ALIGNMENT) * PARAMS_ALIGNMENT
        return start

    def add_dispatch(self, index: int, dispatch: Dispatch) -> None:
        variants: _Variants = []
        for variant in dispatch.variants:
            guards = tuple((self.place(g.expr), g.kind == "zero") for g in variant.when)
            grid = tuple(self.place(d) for d in variant.grid)
            counts = self.place(variant.trips), self.place(variant.repeat)
            variants.append((guards, grid, *counts))
        work = (self.place(dispatch.flops), self.place(dispatch.nbytes))
        self.dispatches.append((index, dispatch, variants, work))

    def add_check(self, check: Check) -> None:
        self.checks.append((self.place(check.guard.expr), check))

    def add_slot(self, slot: int, nbytes: Dim) -> None:
        self.slots.setdefault(slot, {})[self.place(nbytes)] = None

    def add_shape(self, name: str, shape: tuple[Dim, ...]) -> None:
        self.shapes.append((name, tuple(self.place(d) for d in shape)))

    def add_sizes(
        self, name: str, dims: tuple[Dim, ...], shape: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self.sizes.append((name, tuple(self.place(d) for d in dims), shape, dtype))

    def finish(self) -> int:
        """Freezes the table; returns the bytes of its uniform blocks."""
        self.table = Table(self.dims)
        self.template = np.zeros(self.params_nbytes // 4, dtype=np.uint32)
        for word, value in self.floats:
            self.template[word] = np.float32(value).view(np.uint32)
        works = [work for *_, work in self.dispatches]
        self.work_places = np.array(works, dtype=np.intp).reshape(-1, 2)
        self.word_index = np.array([w for w, _ in self.words], dtype=np.intp)
        self.word_place = np.array([p for _, p in self.words], dtype=np.intp)
        return self.params_nbytes

    def evaluate(self, plan: Plan, binding: Mapping[str, int]) -> Bound:
        values = self.table.evaluate(binding)
        self._check(values, binding)
        params = self.template.copy()
        if len(self.word_index):
            numbers = np.array(values, dtype=np.int64)[self.word_place]
            params[self.word_index] = (numbers & 0xFFFFFFFF).astype(np.uint32)
        works = self._works_ns(plan.profile, values)
        chosen = {
            index: self._choose(plan, dispatch, variants, values, work_ns)
            for (index, dispatch, variants, _), work_ns in zip(self.dispatches, works, strict=True)
        }
        slots = {slot: max(values[p] for p in places) for slot, places in self.slots.items()}
        sizes = {
            name: _integers(name, [values[p] for p in places], dtype).reshape(shape)
            for name, places, shape, dtype in self.sizes
        }
        shapes = {name: tuple(values[p] for p in places) for name, places in self.shapes}
        return Bound(chosen, params.tobytes(), self.offset, slots, sizes, shapes)

    def _check(self, values: tuple[int, ...], binding: Mapping[str, int]) -> None:
        broken = [check for place, check in self.checks if not check.guard.accepts(values[place])]
        if broken:
            guard = broken[0].guard
            sizes = ", ".join(f"{s}={binding[s]}" for s in sorted(symbols_of(guard.expr)))
            nodes = dict.fromkeys(n for check in broken for n in check.nodes)
            reason = f"it needs that {guard}, which is not so" + (f" at {sizes}" if sizes else "")
            raise LimitError(reason, tuple(nodes))

    def _works_ns(self, profile: costs.DeviceProfile, values: tuple[int, ...]) -> list[int]:
        """Predicted time of the work of each dispatch, all repetitions together, no launch."""
        work = np.array(values, np.float64)[self.work_places]
        rates = profile.gpu
        seconds = work[:, 0] / (2 * rates.fma_per_s) + work[:, 1] / rates.bytes_per_s
        works: list[int] = (seconds * 1e9).astype(np.int64).tolist()
        return works

    def _choose(
        self,
        plan: Plan,
        dispatch: Dispatch,
        variants: _Variants,
        values: tuple[int, ...],
        work_ns: int,
    ) -> Chosen:
        most = plan.target.max_compute_workgroups_per_dimension
        most_trips = plan.target.max_loop_trips
        problem = "no variant fits the sizes"
        for choice, (guards, grid, trips, repeat) in enumerate(variants):
            for place, zero in guards:
                if values[place] if zero else values[place] < 0:
                    break
            else:
                x, y, z = values[grid[0]], values[grid[1]], values[grid[2]]
                repeats = values[repeat]
                if not (x and y and z and repeats):
                    return Chosen(choice, None, 0, 0)
                if x > most or y > most or z > most:
                    problem = f"{(x, y, z)} workgroups are needed, a dimension holds {most}"
                elif values[trips] > most_trips:
                    problem = f"an invocation would loop {values[trips]} times of {most_trips}"
                elif repeats > MAX_REPEATS:
                    problem = f"{repeats} steps are needed, of which at most {MAX_REPEATS} may be"
                else:
                    predicted_ns = plan.profile.gpu.launch_ns + work_ns // repeats
                    return Chosen(choice, (x, y, z), repeats, predicted_ns)
        raise LimitError(problem, dispatch.nodes)
