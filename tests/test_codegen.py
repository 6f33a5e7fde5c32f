"""Generated WGSL: what a chain reads, computes and stores, and how readable it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine.codegen import Chain, generate
from engine.dims import Dim
from engine.errors import PlanError
from engine.fusion import Group, fuse
from engine.ir import Graph, TensorType
from engine.layout import Storage, storage_of
from engine.target import Target
from tests.graphs import GraphBuilder, N

Golden = Callable[[str, str], None]


def only_group(graph: Graph) -> Group:
    (group,) = fuse(graph, lambda node: True, Target.baseline()).groups
    return group


def storages(graph: Graph) -> dict[str, Storage]:
    tensors = {name: value.tensor for name, value in graph.values.items()}
    return {n: storage_of(t.dtype) for n, t in tensors.items() if t is not None and t.dtype.wgsl}


def chain(graph: Graph, forms: tuple[bool, ...] = (True,)) -> Chain:
    group = only_group(graph)
    anchor = None if group.anchor is None else "y"
    return generate(graph, group, storages(graph), Target.baseline(), anchor, forms)


def loads(*shape: Dim, of: tuple[Dim, ...]) -> str:
    """The line that reads an operand of one shape in a chain over another."""
    b = GraphBuilder()
    b.input("x", *of)
    b.input("w", *shape)
    b.node("Add", "x", "w", out="y")
    text = chain(b.graph(["y"])).fused.functions
    return next(line.strip() for line in text.splitlines() if "load" in line and "_in1(" in line)


def test_a_chain_with_broadcasting_and_two_outputs(golden: Golden) -> None:
    b = GraphBuilder()
    b.input("x", N, 5, 8)
    b.input("row", 8)
    b.input("column", 5, 1)
    b.node("Add", "x", "row", out="a")
    b.node("Mul", "a", "column", out="m")
    b.node("Sigmoid", "m", out="s")
    b.node("Sub", "s", "a", out="y")
    found = chain(b.graph(["s", "y"]))
    assert [t.name for t in found.fused.tensors if t.writable] == ["out0", "out1"]
    assert found.tensors == {"in0": "x", "in1": "row", "in2": "column", "out0": "s", "out1": "y"}
    golden("chain_broadcast.wgsl", found.fused.functions)


def test_an_epilogue_behind_a_product(golden: Golden) -> None:
    b = GraphBuilder()
    b.input("x", N, 16)
    b.constant("w", np.ones((16, 8), np.float32))
    b.constant("bias", np.ones(8, np.float32))
    b.input("rest", N, 8)
    b.node("MatMul", "x", "w", out="m")
    b.node("Add", "m", "bias", out="a")
    b.node("Relu", "a", out="r")
    b.node("Add", "r", "rest", out="y")
    found = chain(b.graph(["y"]), (False, True))
    assert found.fused.replaces == {"y"}
    assert [t.name for t in found.fused.tensors] == ["in0", "in1", "out0"]
    assert "fn store_y(i: u32, start: f32)" in found.fused.functions
    assert "fn store4_y(i: u32, start: vec4<f32>)" in found.fused.functions
    golden("epilogue.wgsl", found.fused.functions)


def test_attributes_and_scalars_are_words_of_params(golden: Golden) -> None:
    b = GraphBuilder()
    b.input("x", 3, 7)
    b.constant("two", np.float32(2))
    b.node("LeakyRelu", "x", out="l", alpha=0.25)
    b.node("Mul", "l", "two", out="m")
    b.node("LeakyRelu", "m", out="y", alpha=0.5)
    found = chain(b.graph(["y"]))
    assert sorted(v for v in found.params.values() if isinstance(v, float)) == [0.25, 0.5, 2.0]
    assert [kind for _, kind in found.fused.params].count("f32") == 3
    assert set(found.params) == {name for name, _ in found.fused.params}
    assert "0.25" not in found.fused.functions
    golden("params.wgsl", found.fused.functions)


def test_comparisons_masks_and_integers(golden: Golden) -> None:
    b = GraphBuilder()
    b.input("x", N, 6, dtype="int32")
    b.input("y", N, 6, dtype="int32")
    b.node("Greater", "x", "y", out="g")
    b.node("Where", "g", "x", "y", out="w")
    b.node("Cast", "w", out="z", to=1)
    golden("mask.wgsl", chain(b.graph(["g", "z"])).fused.functions)


@pytest.mark.parametrize(
    ("shape", "of", "line"),
    [
        ((N, 8), (N, 8), "load4_in1(i)"),
        ((8,), (N, 8), "load4_in1("),
        ((1,), (N, 8), "vec4<f32>(load_in1("),
        ((), (N, 8), "vec4<f32>(load_in1("),
        ((N, 1), (N, 8), "vec4<f32>(load_in1("),
        ((7,), (N, 7), ", load_in1("),
        ((N, 1), (N, 7), ", load_in1("),
        ((3, 1, 1), (3, 5, 4), "vec4<f32>(load_in1("),
        ((5, 1), (3, 5, 7), ", load_in1("),
    ],
)
def test_neighbours_are_loaded_as_wide_as_they_lie(
    shape: tuple[Dim, ...], of: tuple[Dim, ...], line: str
) -> None:
    found = loads(*shape, of=of)
    assert line in found
    assert found.count("load") == (4 if line.startswith(",") else 1)


def test_sizes_are_never_text() -> None:
    def text(rows: int, columns: int) -> str:
        b = GraphBuilder()
        b.input("x", rows, columns)
        b.input("w", columns)
        b.node("Add", "x", "w", out="a")
        b.node("Exp", "a", out="y")
        return chain(b.graph(["y"])).fused.functions

    assert text(37, 113) == text(5, 91)
    assert text(4, 8) == text(1000, 640)


def test_the_same_nodes_under_other_names_give_the_same_text() -> None:
    def text(suffix: str) -> str:
        b = GraphBuilder()
        b.input("x" + suffix, N, 8)
        b.node("Exp", "x" + suffix, out="e" + suffix)
        b.node("Neg", "e" + suffix, out="y" + suffix)
        return chain(b.graph(["y" + suffix])).fused.functions

    assert text("") == text("_of_another\nlayer */")


def test_a_value_read_twice_is_loaded_once() -> None:
    b = GraphBuilder()
    b.input("x", N, 8)
    b.node("Mul", "x", "x", out="m")
    b.node("Add", "m", "x", out="y")
    assert chain(b.graph(["y"])).fused.functions.count("load4_in0(") == 1


def test_narrow_values_are_rounded_where_they_would_be_stored() -> None:
    b = GraphBuilder()
    b.input("x", N, 8, dtype="float16")
    b.node("Exp", "x", out="e")
    b.node("Neg", "e", out="y")
    found = chain(b.graph(["y"]))
    assert found.fused.functions.count("narrow4_f16(") == 1
    assert "lib/narrow_f16.wgsl" in found.fused.includes


def test_compilers_do_not_see_what_operands_of_a_sum_share() -> None:
    b = GraphBuilder()
    b.input("x", N, 8)
    b.input("m", N, 8)
    b.node("Add", "x", "m", out="s")
    b.node("Sub", "s", "m", out="d")
    b.node("Mul", "d", "d", out="y")
    found = chain(b.graph(["y"]))
    assert "let v1 = v1_0 - x1_in1;" in found.fused.functions
    assert "let v2 = v1 * v1;" in found.fused.functions
    assert {name for name in found.params if "zero" in name} == {"n1_zero"}


def test_a_group_of_unknown_size_is_refused() -> None:
    b = GraphBuilder()
    b.input("x", N, 8)
    b.node("Exp", "x", out="y")
    graph = b.graph(["y"])
    group = only_group(graph)
    value = graph.values["y"]
    assert value.tensor is not None
    vague = {**graph.values, "y": value.replace(type=TensorType(value.tensor.dtype, None))}
    with pytest.raises(PlanError, match="Exp has no known shape"):
        generate(graph.replace(values=vague), group, storages(graph), Target.baseline())
