"""Every operator with a GPU form reads parts of buffers, and writes them, touching nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import engine
from tests.properties.cases import strategies
from tests.properties.check import agree, definition_of, describe, tolerance
from tests.properties.drawing import Array, Data, Drawn, Form
from tests.properties.models import build, feeds

EXAMPLES = 2
LONG = 40
LEADS = (5, 8)
"""Elements in front of a part: with 8, four neighbours stay together."""
REAR = 3
"""Elements behind it."""
KEPT = frozenset({"float32", "int32", "uint32", "int64", "bool"})
"""Types of elements that have words of their own, so that they may be parts."""
EDGE = 7


class Within:
    """A model with every input cut out of a longer vector, and every output joined into one.

    What is around an input repeats what is in it; around an output are two values that kernels
    write before, so that what is written too far shows.
    """

    def __init__(self, model: onnx.ModelProto, lead: int) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.lead = lead
        self.feeds: dict[str, Array] = {}
        self.first: list[onnx.NodeProto] = []
        self.last: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {"flat": np.array([-1], np.int64)}

    def cut(self, name: str, array: Array) -> None:
        """Feeds an input as a part."""
        self.feeds[name] = array
        if array.dtype.name not in KEPT or not array.size:
            return
        flat = array.reshape(-1)
        whole = np.concatenate([flat[:1].repeat(self.lead), flat, flat[-1:].repeat(REAR)])
        self.feeds[name] = whole
        self.constants[f"{name}_from"] = np.array([self.lead], np.int64)
        self.constants[f"{name}_to"] = np.array([self.lead + array.size], np.int64)
        self.constants[f"{name}_shape"] = np.array(array.shape, np.int64)
        cut = [name, f"{name}_from", f"{name}_to"]
        self.first.append(oh.make_node("Slice", cut, [f"{name}_cut"]))
        shaped = [f"{name}_cut", f"{name}_shape"]
        self.first.append(oh.make_node("Reshape", shaped, [f"{name}_part"]))
        for node in self.model.graph.node:
            node.input[:] = [f"{name}_part" if n == name else n for n in node.input]
        (info,) = (i for i in self.model.graph.input if i.name == name)
        info.CopyFrom(_info(name, whole))

    def join(self, name: str, array: Array) -> None:
        """Makes an output a part."""
        if array.dtype.name not in KEPT or not array.size:
            return
        for node in self.model.graph.node:
            node.output[:] = [f"{name}_made" if n == name else n for n in node.output]
        for side, size in (("front", self.lead), ("rear", REAR)):
            edge = self.feeds[f"{name}_{side}"] = np.full(size, EDGE).astype(array.dtype)
            self.model.graph.input.append(_info(f"{name}_{side}", edge))
            flip = oh.make_node(_flip(array.dtype), [f"{name}_{side}"], [f"{name}_{side}_made"])
            self.first.insert(0, flip)
        self.last.append(oh.make_node("Reshape", [f"{name}_made", "flat"], [f"{name}_flat"]))
        parts = [f"{name}_front_made", f"{name}_flat", f"{name}_rear_made"]
        self.last.append(oh.make_node("Concat", parts, [name], axis=0))

    def finished(self) -> onnx.ModelProto:
        graph = self.model.graph
        nodes = [*self.first, *graph.node, *self.last]
        del graph.node[:]
        graph.node.extend(nodes)
        named = ((a, n) for n, a in self.constants.items())
        graph.initializer.extend(onnx.numpy_helper.from_array(*each) for each in named)
        return self.model

    def taken_out(self, got: Array, want: Array) -> Array:
        """What an output would be by itself. Fails if what is around it is not as it was."""
        if want.dtype.name not in KEPT or not want.size:
            return got
        rear = self.lead + want.size
        edges = np.concatenate([got[: self.lead], got[rear:]])
        edge = np.full(self.lead + REAR, EDGE).astype(want.dtype)
        np.testing.assert_array_equal(edges, ~edge if want.dtype.kind in "ub" else -edge)
        return got[self.lead : rear].reshape(want.shape)


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    code = oh.np_dtype_to_tensor_dtype(array.dtype)
    return oh.make_tensor_value_info(name, code, [array.size])


def _flip(dtype: np.dtype) -> str:
    return {"b": "Not", "u": "BitwiseNot"}.get(dtype.kind, "Neg")


def check(operator: str, drawn: Drawn, lead: int) -> int:
    """One case; how many of its values were parts."""
    case = strategies()[operator](operator, Form(drawn), Data(drawn))
    if case.opset < 18:
        return 0
    op, constants = definition_of(operator, case), case.constants
    if constants is None:
        planned = () if op is None else op.shape_inputs
        constants = sorted(set(planned) - ({case.behind} if case.ahead else set()))
    model = build(operator, case, constants)
    given = feeds(case, constants)
    with engine.InferenceSession(model, device="cpu") as cpu:
        names = [o.name for o in cpu.get_outputs()]
        want: Mapping[str, Array] = dict(zip(names, cpu.run(None, given), strict=True))
    if any(isinstance(v, list) for v in want.values()):
        return 0
    whole = Within(model, lead)
    for name, array in given.items():
        whole.cut(name, array)
    for name, array in want.items():
        whole.join(name, array)
    with engine.InferenceSession(whole.finished(), device="gpu", target="baseline") as gpu:
        got = dict(zip(names, gpu.run(None, whole.feeds), strict=True))
        count = len(gpu.plan().parts.of)
    for name, right in want.items():
        what = f"{describe(operator, case)}, {name}"
        mine = whole.taken_out(got[name], right)
        agree(mine, right, 2 * tolerance(operator, case), case, what)
    return count


def run(operator: str, lead: int, examples: int) -> None:
    @seed(zlib.crc32(operator.encode()))
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        check(operator, Drawn(data.draw), lead)

    one()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("operator", strategies())
def test_operator_in_parts(operator: str) -> None:
    for lead in LEADS:
        run(operator, lead, EXAMPLES)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("operator", strategies())
def test_operator_in_parts_thoroughly(operator: str) -> None:
    for lead in LEADS:
        run(operator, lead, LONG)
