"""Tiles of convolutions: which are taken, what they leave out at edges, and what strips give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from engine import dims
from engine.dims import Guard
from engine.ops import Lowering, NodeView, definition
from engine.ops._conv_choice import Loop, shared_tile, ways_of
from engine.ops._convolution import Geometry, pack_of
from engine.ops._variants import shares_loads
from engine.runtime import targets
from engine.target import Target
from engine.windows import windows
from tests.ops.conv_cases import conv, lowered
from tests.ops.harness import (
    OpCase,
    arrays,
    case_id,
    check_gpu,
    inferred,
)


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

    assert rows(1, False) == {1}
    assert [rows(n, True) for n in (1, 3, 16, 20, 56)] == [{1}, {3}, {16}, {10}, {14}]


def strip_for(x: Sequence[int], size: int, dynamic: bool = False, **attrs: Any) -> tuple[int, int]:
    """Rows and columns of a strip on a GPU."""
    case = conv(x, (x[1], 1, size, size), group=x[1], pads=[size // 2] * 4, **attrs)
    call = lowered(case, dynamic=dynamic)[0]
    return call.params["rows"], call.params["columns"]  # type: ignore[return-value]


def test_strips_fit_maps() -> None:
    assert strip_for((1, 144, 56, 56), 3) == (4, 8)
    assert strip_for((1, 576, 14, 14), 3) == (5, 7)
    assert strip_for((1, 960, 7, 7), 3) == (4, 7)
    assert strip_for((1, 144, 56, 56), 3, strides=[2, 2]) == (4, 7)
    assert strip_for((1, 8, 9, 9), 3) == (2, 4), "so that more of a GPU is busy"
    assert strip_for((1, 192, 20, 20), 5) == (3, 7)
    assert strip_for((1, 128, 48, 48), 5, strides=[2, 2]) == (4, 4), "four waves have room"
    assert strip_for((1, 128, 20, 20), 5, dynamic=True) == (4, 4), "any of seven may be the last"


LARGE_STRIPS = [
    conv((1, 576, 14, 14), (576, 1, 3, 3), group=576, pads=[1] * 4),
    conv((2, 480, 7, 7), (960, 1, 3, 3), group=480, pads=[1] * 4),
    conv((1, 144, 29, 28), (144, 1, 3, 3), group=144, pads=[1] * 4, strides=[2, 2]),
    conv((2, 96, 20, 19), (96, 1, 5, 5), group=96, pads=[2] * 4),
    conv((1, 64, 3, 14, 14), (128, 1, 3, 3, 3), group=64, pads=[1] * 6),
    conv((2, 32, 3, 14, 14), (32, 1, 3, 3, 3), group=32, pads=[0, 1, 1, 0, 1, 1]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", LARGE_STRIPS, ids=case_id)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_large_strips(case: OpCase, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", "baseline")
    check_gpu(case, dynamic=dynamic)


SINGLE = [
    conv((2, 33, 17, 19), (1, 33, 3, 3), pads=[1] * 4),
    conv((1, 512, 14, 14), (1, 512, 3, 3), pads=[1] * 4),
    conv((2, 64, 6, 5), (1, 64, 3, 3), pads=[1] * 4, bias=False),
    conv((1, 6, 12, 16), (2, 3, 5, 5), group=2, pads=[2] * 4, strides=[2, 1]),
    conv((2, 8, 21, 12), (1, 8, 7, 3), pads=[3, 1, 3, 1]),
    conv((2, 16, 90), (1, 16, 3), pads=[1, 1], strides=[2]),
    conv((1, 1, 700), (1, 1, 256), pads=[127, 127], strides=[2]),
    conv((1, 3, 40, 30), (1, 3, 9, 9), dilations=[2, 2], pads=[8] * 4),
    conv((1, 4, 5, 6, 7), (1, 4, 3, 3, 3), pads=[1] * 6),
    conv((2, 8, 1, 9, 10), (1, 8, 1, 3, 3), dilations=[5, 1, 1], pads=[0, 1, 1, 0, 1, 1]),
    conv((1, 8, 1, 9, 10), (1, 8, 1, 3, 3), strides=[3, 1, 2], pads=[0, 1, 1, 2, 1, 1]),
    conv((1, 0, 6, 7), (1, 0, 3, 3), pads=[1] * 4, oracle="fallback"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("software", [False, True], ids=["gpu", "software"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", SINGLE, ids=case_id)
def test_one_output_channel(
    case: OpCase, dynamic: bool, software: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_TARGET", "baseline")
    monkeypatch.setattr(targets, "is_software", lambda kind: software)
    check_gpu(case, dynamic=dynamic)


def test_one_output_channel_leaves_none_idle() -> None:
    def shaders(x: Sequence[int], w: Sequence[int], software: bool = False) -> list[str]:
        return [c.shader for c in lowered(conv(x, w), software=software)]

    for software in (False, True):
        assert shaders((1, 8, 40, 40), (1, 8, 3, 3), software) == ["conv_depthwise"]
        assert shaders((1, 8, 40, 40), (2, 8, 3, 3), software) == ["conv_dense"]
        assert shaders((1, 8, 40, 40), (1, 8, 1, 1), software) == ["conv_pointwise"]
        assert shaders((1, 1, 4000), (1, 1, 256), software) == ["conv_depthwise"]
        assert shaders((1, 0, 9, 9), (1, 0, 3, 3), software) == ["conv_depthwise"], "biases alone"
    few = (1, 512, 14, 14), (1, 512, 3, 3)
    assert shaders(*few) == ["conv_depthwise", "matmul_sum"], "so that more of a GPU is busy"
    assert shaders(*few, True) == ["conv_depthwise"]


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


def test_large_tiles_with_shared_weights_are_for_long_convolutions() -> None:
    deep = Loop(256, 4, (4, 0))
    assert shared_tile(64, 1, 56 * 56, deep) == (32, 8)
    assert shared_tile(2048, 1, 7 * 7, deep) == (32, 7)
    assert shared_tile(16, 1, 56 * 56, deep) == shared_tile(16, 1, 56 * 56, Loop(16, 4, (4, 0)))
    assert shared_tile(16, 1, 112 * 112, deep) == (16, 8)
    unknown = dims.symbol("n"), dims.symbol("w")
    assert shared_tile(64, *unknown, deep) == (32, 4), "sizes may turn out to be small"


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


def test_large_tiles_have_fewer_channels_for_windows_of_many_taps() -> None:
    rows, width = 112, 112
    three, seven = Loop(64 * 3, 3, (2, 1)), Loop(3 * 7, 7, (2, 5))
    assert shared_tile(64, rows, width, three) == (32, 8)
    assert shared_tile(64, rows, width, seven) == (16, 8)
