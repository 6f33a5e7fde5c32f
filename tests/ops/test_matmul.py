"""MatMul and Gemm: combinations of ranks, tails of tiles, broadcasting, the choice of tiles."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from cpu_fallback import registry
from engine import dims
from engine.errors import ShapeError
from engine.ops import NodeView, Stage, _matmul_tiles, lookup
from engine.ops._matmul_calls import product_stage, product_stages
from engine.ops._matmul_tiles import UNIFORM, Product, best, clocks, tiles
from engine.runtime import targets
from engine.target import Target
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, node_suite, on_gpu

F = "float32"


def matmul(a: tuple[int, ...], b: tuple[int, ...], kind: str = F, **changes: Any) -> OpCase:
    return OpCase("MatMul", ((a, kind), (b, kind))).replace(**changes)


def gemm(
    rows: int,
    columns: int,
    inner: int,
    c: tuple[int, ...] | None = None,
    constants: tuple[int, ...] = (),
    kind: str = F,
    **attrs: Any,
) -> OpCase:
    a = (inner, rows) if attrs.get("transA") else (rows, inner)
    b = (columns, inner) if attrs.get("transB") else (inner, columns)
    inputs = ((a, kind), (b, kind)) if c is None else ((a, kind), (b, kind), (c, kind))
    name = f"{rows}x{inner}x{columns}{c}{constants}{kind}{attrs}".replace(" ", "")
    return OpCase("Gemm", inputs, attrs, constants=constants, name=name)


CASES = [
    matmul((37, 113), (113, 41)),
    matmul((8, 12), (12, 8)),
    matmul((1, 1), (1, 1)),
    matmul((1, 64), (64, 1000)),
    matmul((3, 63), (63, 9)),
    matmul((4, 1280), (1280, 100)),
    matmul((65, 33), (33, 340)),
    matmul((64, 36), (36, 516)),
    matmul((19, 36), (36, 128)),
    matmul((19, 35), (35, 90)),
    matmul((19, 35), (35, 40)),
    matmul((300, 4), (4, 1)),
    matmul((37, 64), (64,)),
    matmul((64,), (64,)),
    matmul((64,), (64, 37)),
    matmul((64,), (2, 64, 5)),
    matmul((2, 3, 7), (7,)),
    matmul((2, 3, 37, 16), (2, 3, 16, 37)),
    matmul((2, 1, 5, 8), (3, 8, 12)),
    matmul((5, 8), (2, 3, 8, 4)),
    matmul((2, 3, 7, 5), (5, 6)),
    matmul((2, 3, 7, 5), (1, 1, 5, 6)),
    matmul((2, 5, 8), (2, 8, 1)),
    matmul((2, 1, 4, 1, 3, 8), (1, 5, 1, 2, 8, 3)),
    matmul((1, 2, 1, 2, 1, 2, 3, 5), (2, 1, 2, 1, 2, 1, 5, 3)),
    matmul((0, 5), (5, 4)),
    matmul((3, 0), (0, 4)),
    matmul((3, 4), (4, 0)),
    matmul((12, 20), (20, 24), "int32"),
    matmul((3, 20), (20, 24), "uint32"),
    *(
        gemm(m, n, k, (n,), transA=a, transB=b)
        for m, n, k in ((37, 41, 19), (8, 12, 16), (3, 20, 13), (40, 1, 24))
        for a in (0, 1)
        for b in (0, 1)
    ),
    *(gemm(8, 12, 16, c, alpha=0.5, beta=0.25) for c in ((), (1,), (12,), (8, 1), (1, 12))),
    *(gemm(3, 21, k, (21,), transB=1) for k in (520, 613)),
    gemm(8, 12, 16, (8, 12), alpha=0.5, beta=0.25),
    gemm(8, 13, 16, (8, 13), beta=-2.0),
    gemm(7, 12, 16, (12,), (1, 2), transB=1),
    gemm(7, 12, 16, (12,), (0, 1), transA=1, transB=1),
    gemm(7, 12, 16, alpha=2.0),
    gemm(40, 1, 24, (40, 1)),
    gemm(40, 1, 24, (1, 1)),
    gemm(5, 3, 8, (3,), kind="int32", alpha=2.0, beta=3.0),
    gemm(5, 3, 8, (3,), kind="uint32", alpha=-1.0, beta=3.0).replace(oracle="fallback"),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each(CASES, check_infer)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase, dynamic: bool, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", target)
    check_gpu(case, dynamic=dynamic)


test_node_suite = node_suite("MatMul", "Gemm")


@pytest.mark.gpu
@settings(max_examples=20)
@given(st.data())
def test_any_sizes(data: st.DataObject) -> None:
    size = st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 31, 64, 65, 130])
    m, k, n = data.draw(size), data.draw(size), data.draw(size)
    batch = data.draw(st.sampled_from([((), ()), ((2,), (2,)), ((3,), ()), ((2, 1), (3,))]))
    case = matmul((*batch[0], m, k), (*batch[1], k, n))
    check_gpu(case, dynamic=data.draw(st.booleans()))


@pytest.mark.gpu
def test_more_workgroups_than_one_dimension_has() -> None:
    check_gpu(matmul((70000, 3, 2), (70000, 2, 3)))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(5, 8), (4, 8)])
def test_nan_and_infinity_pass(shape: tuple[int, int]) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    a[1, 2], a[2, 3], a[3, 4] = np.nan, np.inf, -np.inf
    check_gpu(OpCase("MatMul", (a, ((8, 12), F))))


def test_beta_zero_leaves_c_out() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    c = np.full(2, np.nan, np.float32)
    got = registry.run("Gemm", "", 13, {"beta": 0.0}, [a, b, c], 1)[0]
    np.testing.assert_array_equal(np.asarray(got), np.full((2, 2), 3.0))
    check_gpu(OpCase("Gemm", (a, b, c), {"beta": 0.0}, oracle=lambda *_: np.full((2, 2), 3.0)))


def test_half_precision_is_summed_in_single() -> None:
    a = np.full((1, 4096), 1.0, np.float16)
    b = np.full((4096, 1), 0.25, np.float16)
    got = registry.run("MatMul", "", 13, {}, [a, b], 1)[0]
    assert isinstance(got, np.ndarray) and got.dtype == np.float16 and got.item() == 1024.0


def test_integers_with_broken_factors_are_refused() -> None:
    assert "alpha" in supported(gemm(5, 3, 8, kind="int32", alpha=0.5)).reason
    assert supported(gemm(5, 3, 8, kind="int32", alpha=2.0)).ok


@pytest.mark.parametrize(
    "case",
    [
        matmul((2, 3), (4, 5)),
        matmul((2, 3, 4), (3, 4, 5)),
        matmul((), (3,)),
        gemm(2, 3, 4).replace(inputs=(((2, 4), F), ((5, 3), F))),
        gemm(2, 3, 4).replace(inputs=(((2, 2, 4), F), ((4, 3), F))),
    ],
    ids=case_id,
)
def test_wrong_shapes_are_refused(case: OpCase) -> None:
    with pytest.raises(ShapeError, match=case.op):
        inferred(case)


def test_flops_count_multiplications_and_additions() -> None:
    for case, want in ((matmul((2, 3, 4), (4, 5)), 240), (gemm(3, 5, 4, transA=1), 120)):
        graph, node, _ = inferred(case)
        op = lookup(case.op)
        assert op is not None and op.flops is not None
        assert op.flops(NodeView(graph, node)) == want


SUBGROUPS = Target(subgroup_size=8, features=frozenset({"subgroups"}))


def sized(rows: dims.Dim, columns: dims.Dim, inner: dims.Dim, **changes: Any) -> Product:
    base = Product("f32", "a", "b", rows, columns, inner)
    return dataclasses.replace(base, **changes)


def shape_of(p: Product, **of: Any) -> tuple[int, int, tuple[int, int]]:
    (tile, when), *_ = tiles(p, Target(**of))
    assert not when
    return tile.rows, tile.columns, tile.workgroup


def test_known_sizes_have_one_way() -> None:
    ways = list(tiles(sized(1024, 768, 768)))
    assert len(ways) == 1 and not ways[0][1]
    tile = ways[0][0]
    assert (tile.rows, tile.columns, tile.workgroup) == (8, 4, (64, 1))
    assert tile.inner_by_four and tile.columns_by_four and not tile.shared


def test_few_rows_share_the_inner_axis() -> None:
    assert all(next(tiles(sized(m, 100, 64)))[0].shared for m in (1, 2, 3, 4))
    assert not next(tiles(sized(5, 100, 64)))[0].shared
    assert next(tiles(sized(3, 100, 64)))[0].rows == 3


@pytest.mark.parametrize(
    ("columns", "inner", "shared"),
    [(128, 5000, False), (127, 5000, True), (127, 513, True), (127, 512, False), (3, 37, False)],
)
def test_few_rows_of_many_columns_or_short_ones_need_no_barrier_in_software(
    columns: int, inner: int, shared: bool
) -> None:
    p = dataclasses.replace(sized(2, columns, inner), b_panels="panels")
    ((tile, when),) = tiles(p, Target(software=True))
    assert not when and (tile.shared, tile.rows, tile.panels) == (shared, 2, False)
    assert next(tiles(dataclasses.replace(p, inner=1_000_000), Target(software=True)))[0].shared
    assert next(tiles(p, Target()))[0].shared


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("shares", [False, True])
def test_every_alternative_may_be_taken(shares: bool, software: bool, transposed: bool) -> None:
    """None has all the guards of one in front of it."""
    target = dataclasses.replace(SUBGROUPS if shares else Target(), software=software)
    n, m = dims.symbol("n"), dims.symbol("m")
    for rows, columns, inner in ((n, 384, 1536), (n, n, 64), (n, 64, n), (64, n, m), (n, 30, 30)):
        p = dataclasses.replace(sized(rows, columns, inner), a_transposed=transposed)
        found = [set(when) for _, when in tiles(p, target)]
        assert not found[-1], "the last holds for all sizes"
        assert not any(found[j] <= found[i] for i in range(len(found)) for j in range(i))


def test_small_results_get_small_tiles() -> None:
    rows, columns, _ = shape_of(sized(16, 16, 64))
    assert rows * columns == 8


def test_narrow_results_keep_their_rows_uniform() -> None:
    assert shape_of(sized(2048, 128, 60)) == (8, 2, (64, 1))
    assert shape_of(sized(512, 64, 64)) == (8, 1, (64, 1))
    assert shape_of(sized(512, 40, 64)) == (8, 1, (64, 1))


def test_software_gets_large_tiles() -> None:
    for sizes, wanted, reason in (
        ((1024, 1024, 64), (16, 16), "much to do"),
        ((1024, 64, 1024), (16, 8), "no columns past the end"),
        ((512, 1022, 256), (16, 8), "columns one by one"),
        ((20, 400, 256), (20, 8), "no rows past the end"),
        ((8, 64, 64), (8, 8), "little to do"),
    ):
        assert shape_of(sized(*sizes), software=True) == (*wanted, (8, 1)), reason
    tile, _ = next(tiles(sized(1024, 1024, 64), dataclasses.replace(SUBGROUPS, software=True)))
    assert (tile.rows, tile.columns, tile.workgroup) == (32, 4, (8, 1))
    assert shape_of(sized(512, 16, 64), software=True) == (16, 8, (8, 4))


def test_estimates_follow_the_work() -> None:
    usual, large = sized(64, 128, 512), sized(2048, 2048, 512)
    assert clocks(large, UNIFORM) > 30 * clocks(usual, UNIFORM)
    assert best(large, splitting=True) == (UNIFORM, 1)
    shape, parts = best(usual, splitting=True)
    assert parts > 1 and 1.3 * clocks(usual, shape, parts) < clocks(usual, UNIFORM)
    assert best(sized(64, 128, 511), splitting=True)[1] == 1, "no part may be longer than another"


SPLIT = [
    matmul((48, 512), (512, 72)),
    matmul((2, 9, 512), (2, 512, 130)),
    matmul((3, 2, 9, 512), (2, 512, 33)),
    gemm(40, 70, 512, (70,), alpha=0.5, beta=0.25),
    gemm(40, 70, 512, (40, 1), transA=1, transB=1),
    gemm(40, 70, 512, (40, 70), (1,), transA=1, transB=1, beta=2.0),
]


test_parts_of_the_inner_axis_add_up = on_gpu(SPLIT)


def test_where_the_inner_axis_is_split() -> None:
    def stages(p: Product, target: Target) -> list[Stage]:
        view = SimpleNamespace(target=target, style="", scratch=lambda dtype, shape: "sums")
        return product_stages(view, p, "y")  # type: ignore[arg-type]

    p = sized(48, 72, 512, c="c", c_strides=(0, 1), alpha=0.5)
    ((product,), (total,)) = stages(p, Target.baseline())
    parts = total.params["parts"]
    assert isinstance(parts, int) and parts > 1 and product.params["inner"] == 512 // parts
    assert product.flags == frozenset() and total.flags == {"BIAS"}
    assert product.tensors["y"] == total.tensors["sums"] == "sums" and total.params["alpha"] == 0.5
    for other in (SUBGROUPS, Target(software=True)):
        assert len(stages(p, other)) == 1
    assert len(stages(dataclasses.replace(p, rows=dims.symbol("m")), Target.baseline())) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_tiles_for_software(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("a_transposed", [False, True])
def test_open_sizes_have_a_way_that_always_works(a_transposed: bool, b_transposed: bool) -> None:
    m, n, k = (dims.symbol(name) for name in "mnk")
    product = sized(m, n, k, a_transposed=a_transposed, b_transposed=b_transposed)
    calls = product_stage(product, "y", Target.baseline())
    assert 2 < len(calls) <= 40
    assert not calls[-1].when and all(call.when for call in calls[:-1])
    for binding in ({"m": 1, "n": 1, "k": 1}, {"m": 64, "n": 512, "k": 64}):
        chosen = next(c for c in calls if all(g.holds(binding) for g in c.when))
        shared = "SHARED" in chosen.flags
        assert shared == (binding["m"] <= 4)
        assert dims.evaluate(chosen.params["tasks"], binding) >= 1  # type: ignore[arg-type]


def test_one_column_becomes_one_row() -> None:
    (call,) = product_stage(sized(40, 1, 24), "y", Target.baseline())
    assert "SHARED" in call.flags and dict(call.tensors) == {"a": "b", "b": "a", "y": "y"}
    assert call.params["rows"] == 1 and call.params["columns"] == 40


def test_long_sums_are_shared() -> None:
    (call,) = product_stage(sized(64, 64, 1_000_000), "y", Target.baseline())
    assert "SHARED" in call.flags and dims.evaluate(call.trips, {}) < 60_000
    calls = product_stage(sized(64, 64, dims.symbol("k")), "y", Target.baseline())
    for k in (100_000, 1_000_000):
        chosen = next(c for c in calls if all(g.holds({"k": k}) for g in c.when))
        assert dims.evaluate(chosen.trips, {"k": k}) < 60_000


@pytest.mark.gpu
def test_long_sums_are_right() -> None:
    check_gpu(matmul((9, 250_001), (250_001, 5)).replace(tol=1e-4))


def test_trips_are_bounded() -> None:
    (call,) = product_stage(sized(128, 768, 768), "y", Target.baseline())
    assert call.trips == 768 // 4 + 5


FUSED = """
<ir_version: 10, opset_import: ["" : 21]>
dense (float[SIZE_A] a, float[SIZE_B] b, float[SIZE_Y] c) => (float[p] y)
{
  t = MatMul (a, b)
  u = Add (t, c)
  y = Relu (u)
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((64, 36), (36, 340)),
        ((37, 35), (35, 41)),
        ((1, 64), (64, 100)),
        ((3, 33), (33, 9)),
        ((300, 4), (4, 1)),
        ((2, 3, 9, 8), (3, 8, 12)),
    ],
)
def test_consumers_fused_into_a_product(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (a, b))
    product = x.astype(np.float64) @ w
    c = rng.standard_normal(product.shape).astype(np.float32)
    text = FUSED.replace("float[p]", f"float{list(product.shape)}")
    for name, shape in (("SIZE_A", a), ("SIZE_B", b), ("SIZE_Y", product.shape)):
        text = text.replace(name, str(list(shape))[1:-1])
    model = onnx.parser.parse_model(text)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {"a": x, "b": w, "c": c})
        assert len(session.explain().kernels) == 1
    np.testing.assert_allclose(got, np.maximum(product + c, 0), rtol=1e-5, atol=1e-4)


PANELS = [
    matmul((37, 20), (20, 70), constants=(1,)),
    matmul((64, 33), (33, 132), constants=(1,)),
    matmul((2, 3, 9), (1, 9, 24), constants=(1,)),
    gemm(40, 50, 24, (50,), (1, 2), transB=1),
    gemm(3, 50, 24, (50,), (1, 2), transA=1),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", PANELS, ids=case_id)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_constant_operands_in_panels(
    case: OpCase, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_TARGET", "adapter")
    check_gpu(case, dynamic=dynamic)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [matmul((45, 22), (22, 124), constants=(1,)), PANELS[3]])
def test_wide_tiles(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(_matmul_tiles, "MUCH", 1)
    check_gpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["adapter", "baseline"])
@pytest.mark.parametrize(
    "case",
    [
        *(matmul((2, rows, 10), (10, 37)) for rows in (2, 3, 7, 33)),
        gemm(21, 12, 9, (12,), alpha=0.5, beta=2.0),
        gemm(35, 13, 9, (35, 1), transA=1, transB=1),
    ],
    ids=case_id,
)
def test_loops_for_software(case: OpCase, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", target)
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)


def test_software_stores_in_loops() -> None:
    """A driver that compiles for a CPU takes most of its time for stores."""
    p = sized(128, 768, 770)
    (call,) = product_stage(p, "y", Target(software=True))
    assert call.text["BODY"].count("store4_y(") == call.text["BODY"].count("var sum0_")
    (call,) = product_stage(p, "y", Target())
    assert call.text["BODY"].count("store4_y(") == 8


def test_rows_are_shared_in_subgroups() -> None:
    (call,) = product_stage(sized(128, 768, 768), "y", SUBGROUPS)
    assert call.features == {"subgroups"} and call.overrides["WORKGROUP_X"] == 8
    assert "subgroupBroadcast(p24[3], 7u)" in call.text["BODY"]
    assert "quad_b(b1" not in call.text["BODY"], "two vectors of columns do not pay"
    few = product_stage(sized(20, 768, 64), "y", SUBGROUPS)[0]
    assert "sum23_0" in few.text["BODY"] and "sum24_0" not in few.text["BODY"]
    few = product_stage(sized(6, 768, 768), "y", SUBGROUPS)[0]
    assert "subgroupBroadcast(p0[3], 7u)" in few.text["BODY"] and "sum8_0" not in few.text["BODY"]
    assert product_stage(sized(3, 768, 768), "y", SUBGROUPS)[0].flags == {"SHARED"}
    assert not product_stage(sized(768, 8, 768), "y", SUBGROUPS)[0].features
