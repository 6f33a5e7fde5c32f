"""Dispatches of LSTM, GRU and RNN: one matrix product for all inputs, then the recurrence.

Short recurrences over few hidden units run in one dispatch, a workgroup for each direction of each
sequence, with the state in workgroup memory. All others take a dispatch for each time step, which
spreads the hidden units over the whole GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.dims import Dim, Guard, at_least, ceildiv, product
from engine.dtypes import FLOAT32
from engine.ir import Array
from engine.ops import KernelCall, Lowering, Stage, linear
from engine.ops._activations import Text, text
from engine.ops._matmul_calls import product_stage
from engine.ops._matmul_tiles import Product
from engine.ops._recurrence import functions_of, recurrence
from engine.ops._variants import MAX_TRIPS, choose

WORKGROUP = 64
IN_WORKGROUP = 128
"""Hidden units up to which one workgroup runs a whole sequence. Beyond, it would wait for weights
longer than dispatches to all of the GPU take."""


class Stages:
    """The stages of one node.

    Attributes:
        x: the value of the input.
        input_weights: a value [inputs, directions * gates * hidden] for W, "" takes the node's.
        weights: a value for R as the kernels read it, "" takes the node's.
        rounded: states are rounded to levels of their range before they are multiplied.
    """

    def __init__(self, view: Lowering) -> None:
        self.view = view
        self.x = view.node.inputs[0]
        self.input_weights = ""
        self.rounded = False
        self.found = recurrence(view)
        functions, each = functions_of(view), len(self.found.cell.functions)
        by_direction = [functions[i : i + each] for i in range(0, len(functions), each)]
        self.text: Text = text(by_direction, float(view.attr("clip") or 0.0))
        self.gates = ""
        self.weights = ""
        self.states = ""

    def wanted(self, index: int) -> bool:
        """Whether anything reads output `index`."""
        if not self.view.wants(index):
            return False
        name = self.view.node.outputs[index]
        graph = self.view.graph
        return graph.is_output(name) or bool(graph.consumers.get(name))

    def stages(self) -> list[Stage]:
        found = self.found
        width = found.directions * found.cell.gates * found.hidden
        rows = found.steps * found.sequences
        self.gates = self.view.scratch(FLOAT32, (rows, width))
        first = [self._input_stage(rows, width), *self._pack_stages()]
        loop = self._loop()
        known = [] if loop is None else [g.known for g in loop.when]
        if loop is not None and all(known):
            return [*first, choose([loop])]
        if loop is not None and False in known:
            loop = None
        states = (3, found.directions, found.sequences, found.padded)
        self.states = self.view.scratch(FLOAT32, states)
        steps = [[call] for call in self._steps()]
        rest = [[self._start()], *steps, [self._finish()]]
        if loop is not None:
            idle = [_idle(calls[0], loop.when) for calls in rest]
            for calls, nothing in zip(rest, idle, strict=True):
                calls.insert(0, nothing)
            rest[-2][0] = loop  # among the calls that store y
        return [*first, *(choose(calls) for calls in rest)]

    def _input_stage(self, rows: Dim, width: Dim) -> Stage:
        node, constant = self.view.node, self.view.const(1) is not None

        def turned(w: Array) -> Array:
            return np.ascontiguousarray(w.reshape(len(w) * w.shape[1], w.shape[2]).T)

        weights = self.input_weights
        if not weights:
            weights = self.view.derived(1, "inputs_first", turned) if constant else node.inputs[1]
        projection = Product(
            kind="f32",
            a=self.x,
            b=weights,
            rows=rows,
            columns=width,
            inner=self.found.inputs,
            b_transposed=not constant,
        )
        return product_stage(projection, self.gates, self.view.target)

    def _pack_stages(self) -> list[Stage]:
        """Brings the recurrence weights into the order of the kernels: now, or on each call."""
        found, gates = self.found, self.found.cell.gates
        if self.weights:
            return []
        if self.view.const(2) is not None:
            self.weights = self.view.derived(2, f"recurrence{gates}", packed(gates))
            return []
        shape = (found.directions, found.padded, gates, found.hidden)
        self.weights = self.view.scratch(FLOAT32, shape)
        call = KernelCall(
            "recurrent_pack",
            {"weights": self.view.node.inputs[2], "y": self.weights},
            {"size": product(shape), "hidden": found.hidden, "gates": gates},
            linear(product(shape), WORKGROUP),
        )
        return [(call,)]

    def _common(self) -> tuple[dict[str, str], dict[str, Dim | float], set[str]]:
        """Tensors, words and flags of the kernels that compute cells."""
        view, found = self.view, self.found
        flags = {found.cell.name}
        if self.rounded:
            flags.add("ROUNDED")
        if view.attr("input_forget", 0):
            flags.add("COUPLED")
        if view.attr("linear_before_reset", 0):
            flags.add("LINEAR")
        tensors = {"gates": self.gates, "r": self.weights}
        places = ((3, "b", "BIAS"), (4, "sequence_lens", "LENGTHS"), (7, "p", "PEEPHOLES"))
        for index, name, flag in places:
            if view.has(index):
                tensors[name] = view.node.inputs[index]
                flags.add(flag)
        if self.wanted(0):
            tensors["y"] = view.node.outputs[0]
            flags.add("WANT_Y")
        words: dict[str, Dim | float] = {
            "steps": found.steps,
            "hidden": found.hidden,
            "directions": found.directions,
            "backwards": int(found.backwards),
            **found.x_strides,
            **dict(self.text.words),
        }
        return tensors, words, flags

    def _states_of(
        self,
        places: Sequence[tuple[int, str, str]],
        names: Sequence[str],
        given: Callable[[int], bool],
    ) -> tuple[dict[str, str], set[str]]:
        chosen = [(i, name, flag) for i, name, flag in places if given(i)]
        return {name: names[i] for i, name, _ in chosen}, {flag for _, _, flag in chosen}

    def _initial(self) -> tuple[dict[str, str], set[str]]:
        places = ((5, "initial_h", "INITIAL_H"), (6, "initial_c", "INITIAL_C"))
        return self._states_of(places, self.view.node.inputs, self.view.has)

    def _final(self) -> tuple[dict[str, str], set[str]]:
        places = ((1, "y_h", "WANT_H"), (2, "y_c", "WANT_C"))
        return self._states_of(places, self.view.node.outputs, self.wanted)

    def _loop(self) -> KernelCall | None:
        """The kernel that runs whole sequences; None if it would bind too many buffers."""
        found = self.found
        if self.rounded:
            return None
        tensors, words, flags = self._common()
        for more, flag in (self._initial(), self._final()):
            tensors |= more
            flags |= flag
        target = self.view.target
        size = min(IN_WORKGROUP, target.max_compute_invocations_per_workgroup)
        if isinstance(found.hidden, int):
            size = min(max(-(-found.hidden // 64) * 64, 64), size)
        if len(tensors) > target.max_storage_buffers_per_shader_stage:
            return None
        trips = found.steps * (1 + found.cell.loops * ceildiv(found.hidden, 4))
        when = (
            at_least(size, found.hidden),
            at_least(min(MAX_TRIPS, target.max_loop_trips), trips),
            at_least(target.max_compute_workgroups_per_dimension, found.sequences),
        )
        return KernelCall(
            "recurrent",
            tensors,
            words | dict(found.state_strides),
            (found.sequences, found.directions, 1),
            frozenset(flags),
            {"ACTIVATIONS": self.text.functions},
            {"WORKGROUP_SIZE": size},
            extra_params=tuple((name, "f32") for name, _ in self.text.words),
            trips=trips,
            when=when,
        )

    def _steps(self) -> list[KernelCall]:
        """The kernel of a time step, or the two that take turns."""
        found = self.found
        tensors, words, flags = self._common()
        tensors["states"] = self.states
        words |= {"sequences": found.sequences, "padded": found.padded}

        def call(*more: str) -> KernelCall:
            left = {"y"} if more else set()
            return KernelCall(
                "recurrent_step",
                {k: v for k, v in tensors.items() if k not in left},
                words,
                (ceildiv(found.hidden, WORKGROUP), found.sequences, found.directions),
                frozenset(flags - ({"WANT_Y"} if more else set()) | set(more)),
                {"ACTIVATIONS": self.text.functions},
                extra_params=tuple((name, "f32") for name, _ in self.text.words),
                trips=found.cell.loops * ceildiv(found.hidden, 4) + self._range_trips(),
                repeat=found.steps,
            )

        two = "GRU" in flags and "LINEAR" not in flags
        return [call("RESET"), call()] if two else [call()]

    def _range_trips(self) -> Dim:
        """Loops of an invocation that takes part in finding the range of all states."""
        if not self.rounded:
            return 0
        return ceildiv(self.found.sequences * self.found.padded, WORKGROUP) + 32

    def _start(self) -> KernelCall:
        found = self.found
        tensors, flags = self._initial()
        size = 3 * found.directions * found.sequences * found.padded
        return KernelCall(
            "recurrent_start",
            {**tensors, "states": self.states},
            {"size": size, **self._state_words()},
            linear(size, WORKGROUP),
            frozenset(flags),
        )

    def _finish(self) -> KernelCall:
        found = self.found
        tensors, flags = self._final()
        size = found.directions * found.sequences * found.hidden
        return KernelCall(
            "recurrent_finish",
            {"states": self.states, **tensors},
            {"size": size, "steps": found.steps, **self._state_words()},
            linear(size if flags else 0, WORKGROUP),
            frozenset(flags),
        )

    def _state_words(self) -> dict[str, Dim | float]:
        found = self.found
        return {
            "sequences": found.sequences,
            "hidden": found.hidden,
            "padded": found.padded,
            "directions": found.directions,
            **found.state_strides,
        }


def _idle(call: KernelCall, when: tuple[Guard, ...]) -> KernelCall:
    """The call without workgroups, for sizes at which another stage does its work."""
    return KernelCall(
        call.shader,
        call.tensors,
        call.params,
        (0, 1, 1),
        call.flags,
        call.text,
        call.overrides,
        extra_params=call.extra_params,
        when=when,
    )


def packed(gates: int) -> Callable[[Array], Array]:
    """[directions, gates * hidden, hidden] as [directions, hidden / 4, gates, hidden, 4]."""

    def pack(r: Array) -> Array:
        directions, rows, hidden = r.shape
        fours = -(-hidden // 4)
        wide = np.zeros((directions, rows, fours * 4), r.dtype)
        wide[:, :, :hidden] = r
        blocks = wide.reshape(directions, gates, hidden, fours, 4)
        return np.ascontiguousarray(blocks.transpose(0, 3, 1, 2, 4))

    return pack
