"""Conv and ConvTranspose: NumPy, shape rules and kernels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.parser
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import engine
from cpu_fallback import registry
from engine import dims
from engine.dims import Guard
from engine.errors import ShapeError
from engine.ops import Lowering, NodeView, definition
from engine.ops._conv_choice import Loop, shared_tile, ways_of
from engine.ops._convolution import Geometry, pack_of
from engine.ops._variants import shares_loads
from engine.runtime import targets
from engine.target import Target
from engine.windows import windows
from tests.ops.conv_cases import F, conv, lowered, transposed
from tests.ops.harness import (
    OpCase,
    arrays,
    case_id,
    check_cpu,
    check_gpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, node_suite

CONV = [
    conv((1, 4, 7, 8), (4, 1, 3, 3), group=4, bias=False),
    conv((1, 3, 7, 9), (5, 3, 3, 3), pads=[1, 1, 1, 1]),
    conv((2, 8, 13, 16), (16, 8, 3, 3), pads=[1, 0, 2, 1]),
    conv((1, 4, 17, 41), (9, 4, 5, 3), strides=[2, 2]),
    conv((1, 3, 21, 23), (7, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]),
    conv((1, 3, 9, 9), (4, 3, 3, 3), strides=[3, 3], pads=[1, 1, 1, 1]),
    conv((1, 3, 9, 9), (4, 3, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3]),
    conv((1, 3, 2, 2), (4, 3, 5, 5), pads=[2, 2, 2, 2]),
    conv((1, 3, 8, 7), (4, 3, 4, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
    conv((1, 3, 8, 7), (4, 3, 2, 4), auto_pad="SAME_LOWER", strides=[2, 1]),
    conv((1, 3, 8, 7), (4, 3, 3, 3), auto_pad="SAME_UPPER", dilations=[2, 2], oracle="fallback"),
    conv((1, 3, 8, 7), (4, 3, 3, 3), auto_pad="VALID", kernel_shape=[3, 3]),
    conv((2, 3, 8, 8), (4, 3, 1, 1)),
    conv((2, 37, 7, 7), (13, 37, 1, 1), bias=False),
    conv((2, 16, 1, 1), (24, 16, 1, 1)),
    conv((1, 70, 1, 1), (9, 70, 1, 1), bias=False),
    conv((7, 33, 1), (40, 33, 1)),
    conv((1, 8, 13, 9), (12, 8, 1, 1), strides=[2, 3]),
    conv((1, 6, 8, 8), (9, 2, 1, 1), group=3),
    conv((1, 8, 9, 9), (8, 2, 3, 3), group=4, pads=[1, 1, 1, 1]),
    conv((1, 6, 5, 5), (18, 3, 3, 3), group=2, pads=[1, 1, 1, 1], bias=False),
    conv((1, 6, 9, 9), (6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]),
    conv((2, 4, 11, 8), (8, 1, 5, 5), group=4, pads=[2, 2, 2, 2], strides=[2, 2]),
    conv((1, 4, 11, 9), (4, 1, 7, 3), group=4, dilations=[1, 2]),
    conv((1, 256, 32, 64), (256, 1, 3, 3), group=256, pads=[1, 1, 1, 1]),
    conv((1, 3, 9, 20), (3, 1, 5, 5), group=3, pads=[2, 3, 2, 1]),
    conv((1, 3, 13, 24), (6, 1, 3, 3), group=3, pads=[1, 0, 1, 1], strides=[2, 2]),
    conv((1, 5, 9, 24), (11, 5, 3, 5), pads=[1, 3, 1, 1]),
    conv((1, 5, 40), (11, 5, 3), dilations=[4], pads=[4, 4]),
    conv((1, 5, 64), (11, 5, 7), dilations=[8], pads=[24, 24]),
    conv((1, 5, 12, 40), (11, 5, 3, 4), strides=[1, 2], pads=[1, 2, 1, 0]),
    conv((1, 3, 17), (4, 3, 3), pads=[1, 1]),
    conv((1, 3, 37), (6, 1, 5), group=3, pads=[2, 2]),
    conv((1, 3, 23, 1), (4, 3, 5, 1), pads=[2, 0, 2, 0]),
    conv((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1]),
    conv((1, 2, 5, 6, 7), (2, 1, 2, 3, 3), group=2),
    conv((0, 3, 5, 5), (4, 3, 3, 3), oracle="fallback"),
    conv((1, 8, 24, 40), (64, 8, 3, 3), pads=[1, 1, 1, 1]),
    conv((1, 8, 24, 41), (64, 8, 3, 3), pads=[1, 1, 1, 1]),
    conv((1, 24, 28, 28), (96, 24, 1, 1)),
    conv((1, 35, 7, 7), (40, 35, 1, 1)),
    conv((2, 66, 14, 14), (40, 66, 3, 3), pads=[1, 1, 1, 1]),
    conv((1, 9, 8, 14), (17, 9, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]),
    conv((1, 6, 14, 14), (6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]),
    conv((2, 3, 13, 7), (3, 1, 3, 3), group=3, pads=[1, 1, 1, 1], strides=[2, 1]),
    conv((2, 3, 3, 40), (3, 1, 5, 5), group=3, pads=[2, 2, 2, 2]),
    conv((1, 3, 20, 24), (6, 1, 5, 5), group=3, pads=[2, 2, 2, 2]),
    conv((1, 6, 5, 40), (8, 3, 2, 19), group=2, pads=[0, 9, 1, 9]),
    conv((2, 3, 4, 37), (20, 3, 1, 16), pads=[0, 2, 0, 5], strides=[1, 2]),
    conv((1, 1, 200), (1, 1, 64), strides=[2], pads=[31, 31]),
    conv((1, 2, 9, 11), (40, 2, 1, 9), strides=[2, 3]),
    conv((1, 1, 90), (4, 1, 10), strides=[5]),
    conv((1, 4, 60), (8, 4, 8), strides=[4], pads=[2, 2]),
    conv((1, 1, 333), (20, 1, 40), strides=[16], pads=[7, 12]),
    conv((1, 8, 11, 14), (16, 8, 3, 3), strides=[3, 3], pads=[1, 1, 1, 1]),
    conv((1, 12, 11, 13), (20, 12, 3, 3), dilations=[2, 2], pads=[2, 2, 2, 2]),
    conv((1, 4, 9, 18), (4, 1, 7, 7), group=4, pads=[3, 3, 3, 3]),
    conv((1, 64, 32, 33), (64, 1, 7, 7), group=64, pads=[3, 3, 3, 3], strides=[1, 1]),
    conv((1, 4, 60), (4, 1, 31), group=4, pads=[15, 15]),
    conv((1, 4, 9, 12), (8, 1, 3, 3), group=4, dilations=[2, 2], pads=[2, 2, 2, 2]),
    conv((1, 4, 19, 17), (4, 1, 3, 3), group=4, strides=[3, 3], pads=[1, 1, 1, 1]),
]
TWO_PIXELS = [
    conv((1, 5, 64, 64), (3, 5, 1, 1)),
    conv((2, 6, 47, 51), (8, 6, 1, 1)),
    conv((1, 3, 64, 65), (6, 3, 3, 3), pads=[1, 1, 1, 1]),
]
"""Maps that keep all units busy by two pixels an invocation, and not by four."""
CONV += TWO_PIXELS
LONG = [
    conv((1, 1, 300), (4, 1, 100), strides=[2], pads=[49, 49]),
    conv((2, 1, 64), (8, 1, 24), pads=[5, 17]),
    conv((1, 1, 20), (4, 1, 30), pads=[15, 15]),
    conv((1, 1, 100), (9, 1, 37), pads=[0, 9], strides=[3]),
    conv((2, 1, 120), (8, 1, 16), pads=[24, 12], dilations=[3]),
]
CONV += LONG
TRANSPOSED = [
    transposed((1, 3, 5, 7), (3, 5, 3, 3)),
    transposed((2, 3, 5, 7), (3, 9, 3, 3), strides=[2, 2], bias=False),
    transposed((1, 4, 6, 5), (4, 9, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    transposed(
        (1, 4, 6, 5),
        (4, 9, 4, 3),
        strides=[3, 2],
        dilations=[2, 3],
        pads=[1, 0, 2, 1],
        output_padding=[1, 1],
    ),
    transposed((1, 4, 6, 5), (4, 3, 3, 3), strides=[4, 6], dilations=[2, 4]),
    transposed((1, 4, 6, 5), (4, 3, 2, 3), strides=[3, 3], group=2),
    transposed((1, 4, 6, 5), (4, 1, 3, 3), strides=[2, 2], group=4),
    transposed(
        (1, 4, 6, 5), (4, 3, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER", cut=(0, (12, 10))
    ),
    transposed(
        (2, 4, 6, 5), (4, 3, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER", cut=(1, (12, 10))
    ),
    transposed(
        (1, 4, 4, 4), (4, 3, 3, 3), strides=[2, 2], output_shape=[7, 7], auto_pad="SAME_UPPER"
    ),
    transposed((1, 4, 6, 5), (4, 3, 3, 3), strides=[2, 2], auto_pad="VALID"),
    transposed((1, 4, 9), (4, 3, 4), strides=[2]),
    transposed((1, 2, 3, 4, 5), (2, 3, 2, 3, 3), strides=[1, 2, 2]),
    transposed((1, 3, 5, 5), (3, 4, 1, 1), strides=[3, 3]),
    transposed((1, 8, 20, 20), (8, 24, 2, 2), strides=[2, 2]),
    transposed((2, 8, 9, 16), (8, 12, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    transposed((1, 8, 3, 50), (8, 20, 1, 8), strides=[1, 4], pads=[0, 2, 0, 3]),
    transposed((1, 4, 64, 64), (4, 3, 2, 3), strides=[2, 2]),
]
CASES = CONV + TRANSPOSED


test_node_suite = node_suite("Conv", "ConvTranspose")
test_cpu = for_each(CASES, check_cpu)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_infer(case: OpCase) -> None:
    check_infer(case)
    check_infer(case.replace(constants=()))


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase, dynamic: bool, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", target)
    check_gpu(case.replace(constants=()) if dynamic else case, dynamic=dynamic)


@pytest.mark.gpu
@pytest.mark.slow
def test_more_workgroups_than_one_grid_dimension_holds() -> None:
    check_gpu(conv((8 * 65535 + 9, 2, 1, 1), (3, 2, 1, 1), oracle="fallback"))


@st.composite
def drawn(draw: st.DrawFn) -> OpCase:
    """A convolution of one or two spatial axes whose windows fit."""
    rank = draw(st.integers(1, 2))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, group = ints(1, 5), draw(st.sampled_from((1, 2, 3)))
    attrs: dict[str, Any] = {"strides": ints(1, 3), "dilations": ints(1, 4), "group": group}
    padding = draw(st.sampled_from(("pads", "SAME_UPPER", "SAME_LOWER")))
    if padding == "pads":
        attrs["pads"] = ints(0, 4, 2 * rank)
    else:
        attrs["auto_pad"] = padding
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    size = [max(n, r) for n, r in zip(ints(1, 21), reach, strict=True)]
    inner, outer = draw(st.sampled_from((1, 2, 5))), draw(st.sampled_from((1, 3, 8, 9)))
    bias = draw(st.booleans())
    x = (draw(st.integers(1, 2)), inner * group, *size)
    if draw(st.booleans()):
        return conv(x, (outer * group, inner, *kernel), bias=bias, oracle="fallback", **attrs)
    case = transposed(x, (inner * group, outer, *kernel), bias=bias, **attrs)
    return case.replace(oracle="fallback")


@pytest.mark.gpu
@settings(max_examples=25)
@given(drawn(), st.booleans(), st.sampled_from(("baseline", "adapter")), st.booleans())
def test_drawn_cases(case: OpCase, dynamic: bool, target: str, software: bool) -> None:
    try:
        registry.run(case.op, "", 22, dict(case.attrs), arrays(case), 1)
    except ValueError:
        reject()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINE_TARGET", target)
        patch.setattr(targets, "is_software", lambda kind: software)
        check_gpu(case.replace(constants=()) if dynamic else case, dynamic=dynamic)


FOR_SOFTWARE = [
    *(conv((1, 9, 6, width), (43, 9, 1, 1)) for width in (7, 8, 13)),
    conv((2, 6, 9, 8), (22, 3, 3, 3), group=2, pads=[1] * 4),
    conv((1, 3, 9, 30), (13, 3, 3, 3), bias=False, strides=[2, 2]),
    *(
        conv((2, 5, 11, width), (5, 1, size, 3), group=5, pads=[1] * 4, strides=[step, 1])
        for width, size, step in ((8, 3, 1), (9, 5, 1), (12, 3, 2), (7, 4, 2), (8, 1, 1))
    ),
    conv((1, 4, 7, 8), (4, 1, 3, 3), group=4, bias=False),
    conv((1, 3, 4, 5, 8), (6, 1, 2, 3, 3), group=3, pads=[0, 1, 1, 1, 1, 1]),
    transposed((1, 5, 4, 6), (5, 11, 3, 3), strides=[2, 2]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize("case", FOR_SOFTWARE, ids=case_id)
def test_loops_for_software(case: OpCase, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", target)
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)


def test_software_stores_in_loops() -> None:
    """A driver that compiles for a CPU takes most of its time for stores."""
    for case in (conv((1, 64, 9, 9), (64, 64, 1, 1)), conv((1, 64, 9, 9), (64, 64, 3, 3))):
        (call,) = lowered(case, "uniform-8x7", software=True)
        assert call.text["STORE"].count("store_y(") == 7
        (call,) = lowered(case, "uniform-8x7")
        assert call.text["STORE"].count("store_y(") == 8 * 7
    case = conv((1, 8, 9, 9), (8, 1, 3, 3), group=8)
    assert [c.text["STORE"].count("store_y(") for c in lowered(case, software=True)] == [7]
    assert [c.text["STORE"].count("store_y(") for c in lowered(case)] == [16]
    deep = conv((1, 8, 3, 9, 9), (8, 1, 3, 3, 3), group=8)
    assert "ROLLED" not in lowered(deep, software=True)[0].flags


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 4, 9, 12), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 4, 9, 11), (6, 4, 1, 1), {}),
        ((1, 6, 9, 12), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
        ((1, 6, 9, 11), (6, 1, 3, 3), {"group": 6, "strides": [2, 2]}),
    ],
    ids=["dense-wide", "pointwise", "depthwise-wide", "depthwise"],
)
def test_what_follows_is_computed_where_the_output_is_stored(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(w).astype(np.float32)
    values = rng.standard_normal(x).astype(np.float32)
    plain = registry.run("Conv", "", 22, attrs, [values, weights], 1)[0]
    rest = rng.standard_normal(plain.shape).astype(np.float32)
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], **attrs),
        oh.make_node("Add", ["c", "r"], ["s"]),
        oh.make_node("Relu", ["s"], ["y"]),
    ]
    infos = [oh.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", values), ("r", rest))]
    graph = oh.make_graph(
        nodes,
        "chain",
        infos,
        [oh.make_tensor_value_info("y", 1, plain.shape)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 22)], ir_version=10)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {"x": values, "r": rest})
    np.testing.assert_allclose(got, np.maximum(plain + rest, 0), atol=1e-4)


def test_same_pads_of_symbolic_sizes_are_expressions() -> None:
    h = dims.symbol("h")
    win = windows([h], [3], auto_pad="SAME_UPPER", strides=[2])
    for size in range(1, 9):
        now = [dims.evaluate(d, {"h": size}) for d in (win.out[0], win.begin[0], win.end[0])]
        total = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
        assert now == [-(-size // 2), total // 2, total - total // 2]


def test_float16_and_float64_keep_their_type() -> None:
    case = conv((1, 3, 7, 9), (5, 3, 3, 3), pads=[1, 1, 1, 1])
    values = [v for v in arrays(case) if v is not None]
    exact = registry.run("Conv", "", 22, case.attrs, values, 1)[0]
    for dtype, tol in ((np.float16, 2e-2), (np.float64, 1e-5)):
        got = registry.run("Conv", "", 22, case.attrs, [v.astype(dtype) for v in values], 1)[0]
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), exact, atol=tol)


def test_negative_pads_crop() -> None:
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    w = np.ones((1, 1, 2, 2), np.float32)
    attrs = {"pads": [-1, 0, 0, -2]}
    cropped = registry.run("Conv", "", 22, {}, [x[:, :, 1:, :4].copy(), w], 1)[0]
    np.testing.assert_array_equal(registry.run("Conv", "", 22, attrs, [x, w], 1)[0], cropped)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (conv((1, 4, 5, 5), (6, 3, 3, 3)), "channels"),
        (conv((1, 3, 2, 2), (6, 3, 5, 5)), "does not fit"),
        (conv((1, 3, 5, 5), (6, 3, 3, 3), kernel_shape=[2, 2]), "kernel_shape"),
        (conv((1, 3, 5, 5), (6, 3, 3, 3), auto_pad="MAYBE"), "MAYBE"),
        (transposed((1, 4, 5, 5), (3, 6, 3, 3)), "channels"),
        (transposed((1, 4, 2, 2), (4, 6, 1, 1), pads=[2, 2, 2, 2]), "exceed"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_shapes_that_do_not_fit_are_refused(case: OpCase, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        inferred(case)
    with pytest.raises(ValueError):
        registry.run(case.op, "", 22, dict(case.attrs), arrays(case), 1)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (conv((1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1)), "three spatial axes"),
        (conv((1, 8192, 3, 3), (1, 8192, 3, 3), strides=[3, 3]), "loop"),
        (transposed((1, 2, 3, 3), (2, 2, 3, 3), pads=[-1, 0, 0, 0]), "negative pads"),
    ],
    ids=["rank", "trips", "pads"],
)
def test_gpu_refusals_have_reasons(case: OpCase, words: str) -> None:
    verdict = supported(case)
    assert not verdict.ok and words in verdict.reason


def tile_for(
    channels: int, size: dims.Dim, **of: Any
) -> tuple[int, int, tuple[int, int], tuple[Guard, ...]]:
    """The first choice for a 3x3 convolution of 64 channels."""
    win = windows([1, size, size], [1, 3, 3], pads=[0, 1, 1] * 2)
    geo = Geometry(win, 1, 1, 64, channels, pack_of(channels))
    loop = Loop(64 * 3, 3, (1, 2))
    first = ways_of(geo, size, size, loop, Target(**of))[0]
    return first.tile.rows, first.tile.columns, first.workgroup, first.when


def test_small_maps_get_small_tiles() -> None:
    assert tile_for(64, 56)[:3] == (8, 4, (64, 1))
    assert tile_for(1024, 14)[:3] == (8, 4, (64, 1))
    assert tile_for(64, 7)[:3] == (16, 1, (64, 1))
    assert tile_for(24, 7)[:3] == (8, 1, (64, 1))
    open_size = tile_for(64, dims.symbol("size"))
    assert open_size[:3] == (8, 4, (64, 1)) and len(open_size[3]) == 2


def test_software_gets_large_tiles() -> None:
    for size, columns in ((56, 8), (7, 7), (14, 7), (13, 7), (60, 8)):
        assert tile_for(64, size, software=True)[:3] == (8, columns, (64, 1))


@pytest.mark.parametrize("fours", [False, True])
@given(st.data())
def test_edges_are_what_windows_meet_outside(fours: bool, data: st.DataObject) -> None:
    kernel, stride = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 2))
    pads = [data.draw(st.integers(0, 4)) for _ in range(2)]
    columns = data.draw(st.sampled_from([1, 2, 4, 7, 8]))
    size = data.draw(st.integers(max(kernel - sum(pads), 1), 40))
    win = windows([size], [kernel], strides=[stride], pads=pads)
    (out,) = win.out
    assert isinstance(out, int)
    if fours and out % 4:
        reject()
    met = {
        (window % columns) * stride + tap
        for window in range(out)
        for tap in range(kernel)
        if not 0 <= window * stride + tap - pads[0] < size
    }
    assert win.edges(columns, fours) == met
    open_win = windows([dims.symbol("n")], [kernel], strides=[stride], pads=pads)
    assert open_win.edges(columns, fours) >= met
    assert win.edges(columns, fours, any_size=True) >= met


def test_edges_of_few_windows_and_of_pixels_that_none_meets() -> None:
    assert windows([5], [1], strides=[2], pads=[2, 0]).edges(2) == {0}
    assert windows([1], [3], pads=[0, 2]).edges(2) == {1, 2}


SPLIT = [
    conv((1, 256, 7, 7), (40, 256, 3, 3), pads=[1, 1, 1, 1]),
    conv((2, 512, 7, 7), (24, 512, 1, 1)),
    conv((2, 128, 5, 9), (20, 128, 3, 1), bias=False, strides=[2, 2]),
    conv((1, 256, 14, 14), (36, 256, 1, 1), strides=[2, 2]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", SPLIT, ids=case_id)
def test_parts_of_the_input_channels_add_up(case: OpCase) -> None:
    assert [c.shader for c in lowered(case)][1:] == ["matmul_sum"]
    check_gpu(case)


def test_where_input_channels_are_split() -> None:
    case = SPLIT[0]
    product, total = lowered(case)
    parts = total.params["parts"]
    assert parts == product.params["groups"] and product.params["group_in"] == 256 // int(parts)  # type: ignore[arg-type]
    assert "BIAS" in total.flags and "BIAS" not in product.flags
    shares = {"features": frozenset({"subgroups"}), "subgroup_size": 8}
    for other in ({"software": True}, shares, {"style": "uniform-8x4"}):
        assert "matmul_sum" not in [c.shader for c in lowered(case, **other)]  # type: ignore[arg-type]
    for large in (conv((1, 256, 56, 56), (64, 256, 1, 1)), conv((1, 16, 7, 7), (64, 16, 3, 3))):
        assert len(lowered(large)) == 1
    assert len(lowered(case.replace(constants=()))) == 2, "packing, then one product"


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CONV, *TRANSPOSED], ids=case_id)
def test_tiles_for_software(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [12, 20, 16, 13])
def test_open_widths_end_in_the_midst_of_a_large_tile(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(conv((1, 4, 9, width), (8, 4, 3, 3), pads=[1, 1, 1, 1]), dynamic=True)


@pytest.mark.parametrize("size", [3, 5])
def test_gpus_leave_out_rows_outside_of_a_strip(size: int) -> None:
    case = conv((1, 8, 24, 24), (8, 1, size, size), group=8, pads=[size // 2] * 4)
    for software in (False, True):
        text = lowered(case, software=software)[0].text["TAPS"]
        assert text.count("if (inside") == (0 if software else size - 1)
        assert bool(re.search(r"select\(.*inside", text)) == software


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_strips_keep_what_is_not_finite(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", "baseline")
    for size, width in ((3, 12), (5, 16), (3, 13)):
        plain = conv((1, 3, 9, width), (3, 1, size, size), group=3, pads=[size // 2] * 4)
        values, *rest = arrays(plain)
        for number, row, column in ((np.nan, 0, 0), (np.inf, 4, 3), (-np.inf, 8, width - 1)):
            broken = values.copy()
            broken[0, :, row, column] = number
            case = plain.replace(inputs=(broken, *rest), oracle="fallback")
            check_gpu(case.replace(constants=()) if dynamic else case, dynamic=dynamic)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["baseline", "adapter"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize(("width", "pad"), [(12, 1), (16, 2), (13, 1)])
def test_strips_of_narrow_types(
    kind: str, width: int, pad: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a strip's pixels begin within four neighbours, and these within words."""
    monkeypatch.setenv("ENGINE_TARGET", target)
    size = 2 * pad + 1
    case = conv((1, 3, 9, width), (3, 1, size, size), group=3, pads=[pad] * 4, bias=False)
    inputs = tuple((spec[0], kind) for spec in case.inputs if spec is not None)
    check_gpu(case.replace(inputs=inputs, oracle="fallback", tol=2e-2))


def test_strips_are_as_high_as_each_other() -> None:
    def rows(height: int, software: bool) -> set[int]:
        case = conv((1, 8, height, 24), (8, 1, 5, 5), group=8, pads=[2] * 4)
        return {int(c.params["rows"]) for c in lowered(case, software=software)}  # type: ignore[arg-type]

    assert rows(20, False) == {4} and rows(1, False) == {1}
    assert [rows(n, True) for n in (1, 3, 16, 20, 56)] == [{1}, {3}, {16}, {10}, {14}]


def test_what_is_computed_in_front_of_a_pointwise_kernel_is_shared_by_more_channels() -> None:
    def tiles(channels: int, front: int, kernel: int = 1, **of: Any) -> tuple[int, int]:
        (call,) = lowered(conv((1, 64, 56, 56), (channels, 64, kernel, kernel)), front=front, **of)
        return call.overrides["ROWS"], call.params["columns"]  # type: ignore[return-value]

    assert tiles(64, front=3) == (16, 2)
    assert tiles(64, front=0) == tiles(120, front=3) == (8, 4)
    assert tiles(64, front=3, kernel=3) == (8, 4), "a pixel meets every channel three times"
    assert tiles(64, front=3, software=True) == tiles(64, front=0, software=True)


def test_tiles_with_shared_weights_fill_subgroups() -> None:
    pointwise, dense = Loop(16, 4, (4, 0)), Loop(192, 3, (1, 2))
    assert shared_tile(64, 1, 56 * 56, pointwise) == (32, 4)
    assert shared_tile(48, 1, 56 * 56, pointwise) == (16, 4), "a third of 64 would be idle"
    assert shared_tile(16, 1, 7 * 7, pointwise) == (16, 7)
    assert shared_tile(512, 7, 7, dense) == (16, 7)
    assert shared_tile(8, 1, 56 * 56, pointwise) == (8, 4)
    unknown = dims.symbol("c"), dims.symbol("n"), dims.symbol("w")
    assert shared_tile(*unknown, pointwise) == (16, 4)


def test_weights_are_shared_where_subgroups_have_the_right_size() -> None:
    assert not shares_loads(Target.baseline())
    for size, expected in ((8, True), (4, False), (32, False), (0, False)):
        target = Target(subgroup_size=size, features=frozenset({"subgroups"}))
        assert shares_loads(target) == expected
    assert not shares_loads(Target(subgroup_size=8))


def test_images_of_one_pixel_are_rows_of_a_matrix() -> None:
    for x, w, shader in (
        ((2, 16, 1, 1), (24, 16, 1, 1), "matmul"),
        ((2, 16, 1, 2), (24, 16, 1, 1), "conv_pointwise"),
    ):
        (call,) = lowered(conv(x, w))
        assert call.shader == shader
    (call,) = lowered(conv((2, 16, 1, 1), (24, 8, 1, 1), group=2))
    assert call.shader == "conv_pointwise"


def test_weights_that_are_no_constants_are_packed_on_the_gpu() -> None:
    for constants, stages in (((1, 2), 1), ((), 2)):
        case = conv((1, 3, 9, 9), (5, 3, 3, 3)).replace(constants=constants)
        graph, node, _ = inferred(case)
        op = definition(node)
        assert op is not None and op.lower is not None
        view = Lowering(graph, node, NodeView(graph, node).target, str, lambda *a: "derived")
        assert len(op.lower(view)) == stages


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("sizes", ["0", "n"])
@pytest.mark.parametrize(
    ("x", "attrs", "out"),
    [
        ((1, 1, 0), "", 2),
        ((1, 1, 0), "strides = [2], output_padding = [1]", 2),
        ((1, 1, 0), "output_shape = [5]", 5),
        ((1, 1, 0), "pads = [1, 1]", 0),
        ((1, 1, 0), 'auto_pad = "SAME_UPPER"', 0),
        ((1, 0, 4), "", 6),
    ],
)
def test_nothing_transposed(
    x: tuple[int, ...], attrs: str, out: int, sizes: str, device: str
) -> None:
    """The formula for sizes holds for an empty axis too; what no element reaches is the bias."""
    declared = "float[1, c, n] x" if sizes == "n" else f"float{[*x]} x"
    text = f"""<ir_version: 9, opset_import: ["": 22]>
    g ({declared}, float[{x[1]}, 2, 3] w, float[2] b) => (float y) {{
        y = ConvTranspose{f"<{attrs}>" if attrs else ""}(x, w, b) }}"""
    feeds = {"x": np.ones(x), "w": np.ones((x[1], 2, 3)), "b": np.array([3, 4])}
    with engine.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), device=device
    ) as session:
        (y,) = session.run(None, {n: a.astype(F) for n, a in feeds.items()})
    np.testing.assert_array_equal(y, np.broadcast_to([[[3.0], [4.0]]], (1, 2, out)))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["Conv", "MaxPool"])
def test_padded_axis_of_one_element(op: str) -> None:
    """The only window of the last axis lies in the padding: that axis is not to be left out."""
    import onnx.parser

    import engine

    x = np.arange(1, 4, dtype=np.float32).reshape(1, 1, 3, 1)
    window = "pads = [0, 1, 0, 0], strides = [1, 2]"
    call = (
        f"Conv<{window}>(x, w, b)"
        if op == "Conv"
        else f"MaxPool<kernel_shape = [1, 1], {window}>(x)"
    )
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[1, 1, 3, 1] x, float[1, 1, 1, 1] w, float[1] b) => (float y) {{ y = {call} }}"""
    feeds = {"x": x, "w": np.full((1, 1, 1, 1), 2, np.float32), "b": np.full(1, 5, np.float32)}
    if op == "MaxPool":
        text = text.replace("[0, 1, 0, 0]", "[0, 0, 0, 0]")
    model = onnx.parser.parse_model(text).SerializeToString()
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, feeds)
    np.testing.assert_array_equal(got, np.full_like(x, 5) if op == "Conv" else x)
