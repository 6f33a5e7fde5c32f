"""Winograd's tiles: exact in fractions, right in kernels of each size, chosen where they pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import InferenceSession
from engine.dtypes import BFLOAT16, FLOAT16, DType
from engine.ops import NodeView
from engine.ops import _conv_winograd as winograd
from engine.ops.conv import geometry
from engine.runtime import targets
from tests.ops.conv_cases import conv, lowered, ort, winograd_sizes
from tests.ops.harness import OpCase, case_id, check_gpu, inferred
from tests.runtime.models import parse


@given(st.sampled_from(sorted(winograd.POINTS)), st.data())
def test_winograd_is_exact_in_fractions(size: int, data: st.DataObject) -> None:
    found, number = winograd.transforms(size), st.integers(-9, 9)
    x = [data.draw(number) for _ in range(size + 2)]
    w = [data.draw(number) for _ in range(3)]

    def times(matrix: winograd.Matrix, vector: Sequence[Any]) -> list[Any]:
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    products = [a * b for a, b in zip(times(found.weights, w), times(found.input, x), strict=True)]
    assert times(found.output, products) == [
        sum(x[i + k] * w[k] for k in range(3)) for i in range(size)
    ]


WINOGRAD = [
    conv((1, 3, 7, 9), (5, 3, 3, 3), pads=[1, 1, 1, 1]),
    conv((2, 8, 13, 16), (16, 8, 3, 3), pads=[1, 0, 2, 1]),
    conv((1, 5, 3, 3), (4, 5, 3, 3), bias=False),
    conv((1, 4, 6, 5), (4, 4, 3, 3), pads=[-1, 0, 1, 2], oracle="fallback"),
    conv((1, 3, 17), (4, 3, 3), pads=[1, 1]),
    conv((1, 512, 12, 12), (64, 512, 3, 3), pads=[1, 1, 1, 1]),
    conv((2, 6, 3, 9, 8), (5, 6, 1, 3, 3), pads=[0, 1, 1, 0, 1, 1]),
    conv((1, 6, 4, 9, 8), (5, 6, 1, 3, 3), strides=[2, 1, 1]),
    conv((1, 6, 1, 9, 8), (5, 6, 1, 3, 3), pads=[1, 1, 1, 1, 1, 1]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("size", sorted(winograd.POINTS))
@pytest.mark.parametrize("case", WINOGRAD, ids=case_id)
def test_winograd(case: OpCase, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = winograd_sizes(monkeypatch)
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(
        winograd, "best_size", lambda view, geo: size * winograd.fits(view, geo, size)
    )
    check_gpu(case)
    assert made == ([size] if len(case.inputs[0][0]) == 4 else []), "only planes have such tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("size", sorted(winograd.POINTS))
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_what_is_no_number_stays_in_its_window(
    mode: str, value: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And sums that overflow only while they are transformed do not."""
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(winograd, "best_size", lambda view, geo: size)
    text = f"""none (float[1,5,9,10] x, float[6,5,3,3] w, float[6] b) => (float[1,6,9,10] y)
      <int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}> {{
      q = Pad <mode = "{mode}"> (x, p)  y = Conv(q, w, b) }}"""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 5, 9, 10), dtype=np.float32)
    x[0, 2, 4, 6] = x[0, 0, 8, 0] = value
    w = (rng.standard_normal((6, 5, 3, 3), dtype=np.float32) / 8).clip(-0.4, 0.4)
    model = parse(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    b = rng.standard_normal(6, dtype=np.float32)
    feeds = {"x": x, "b": b}
    with (
        InferenceSession(model, device="gpu", require_gpu=True, target="baseline") as gpu,
        InferenceSession(model, device="cpu") as cpu,
    ):
        (mine,), (other,) = gpu.run(None, feeds), cpu.run(None, feeds)
        kernels = {kernel.stem for kernel in gpu.plan().kernels}
    assert "conv_winograd_output" in kernels
    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
    assert (np.isfinite(mine).sum() < mine.size) == (value != 3e38)


@pytest.mark.gpu
@pytest.mark.parametrize("size", sorted(winograd.POINTS))
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_weights_of_narrow_types_are_transformed_to_floats(
    dtype: DType, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed words of theirs hold half as much as the transformed ones take."""
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(winograd, "best_size", lambda view, geo: size)
    rng = np.random.default_rng(7)
    x = rng.standard_normal((1, 6, 9, 11)).astype(dtype.numpy)
    w = (rng.standard_normal((5, 6, 3, 3)) / 8).astype(dtype.numpy)
    t = dtype.name
    model = parse(
        f"""none ({t}[1,6,9,11] x, {t}[5,6,3,3] w) => ({t}[1,5,9,11] y) {{
          y = Conv <pads = [1, 1, 1, 1]> (x, w) }}""",
        opset=22,
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    with InferenceSession(model, device="gpu", require_gpu=True, target="baseline") as session:
        (found,) = session.run(None, {"x": x})
        kernels = {kernel.stem for kernel in session.plan().kernels}
    assert "conv_winograd_output" in kernels
    want = ort("Conv", pads=[1] * 4)(x.astype(np.float32), w.astype(np.float32))
    np.testing.assert_allclose(
        found.astype(np.float32), want, rtol=2.0**-8 if dtype is BFLOAT16 else 2.0**-10, atol=1e-3
    )


@pytest.mark.gpu
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("case", WINOGRAD, ids=case_id)
def test_winograd_in_bands_of_a_row(
    case: OpCase, across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "BAND_NBYTES", 1)
    monkeypatch.setattr(winograd, "_is_across", lambda *args: across)
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(winograd, "best_size", lambda view, geo: 2 * winograd.fits(view, geo, 2))
    check_gpu(case)


def test_few_tiles_are_rows_of_the_product() -> None:
    """Its columns come in multiples of 32 or 64, its rows in fewer."""
    for size, inner in ((56, False), (14, True)):
        w = (256, 256, 3, 3)
        case = conv((1, 256, size, size), w, pads=[1] * 4)
        shares = {"features": frozenset({"subgroups"}), "subgroup_size": 8, "software": True}
        first, product, last = lowered(case, **shares)  # type: ignore[arg-type]
        assert first.overrides["SIZE"] == 4
        assert first.params["channels_inner"] == last.params["channels_inner"] == inner
        tiles = first.params["count"] / first.params["channels"]
        assert product.params["columns" if not inner else "rows"] == tiles


def test_transforms_are_the_same_kernels_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tiles as rows or as columns of the product, and of one band or several."""
    found = set()
    for across, nbytes in ((True, 1 << 22), (False, 1 << 22), (True, 1)):
        monkeypatch.setattr(winograd, "BAND_NBYTES", nbytes)
        monkeypatch.setattr(winograd, "_is_across", lambda *args, across=across: across)
        calls = lowered(conv((1, 16, 14, 14), (16, 16, 3, 3), pads=[1] * 4), "winograd-4x4")
        assert (calls[0].repeat == 1) == (nbytes > 1)
        found.add(
            tuple((c.shader, c.flags, *c.text.items()) for c in calls if "winograd" in c.shader)
        )
    assert len(found) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("nbytes", [1, 20000, 1 << 22])
@pytest.mark.parametrize("case", WINOGRAD[:3], ids=case_id)
def test_winograd_of_open_sizes(case: OpCase, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = winograd_sizes(monkeypatch)
    monkeypatch.setattr(winograd, "BAND_NBYTES", nbytes)
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    monkeypatch.setattr(winograd, "best_size", lambda view, geo: 4 * winograd.fits(view, geo, 4))
    check_gpu(case, dynamic=True)
    assert made == [4]


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 3), st.sampled_from((1, 5000, 1 << 20))
)
def test_bands_cover_all_rows_of_tiles(height: int, width: int, batch: int, nbytes: int) -> None:
    case = conv((batch, 8, height + 2, width + 2), (16, 8, 3, 3))
    graph, node, _ = inferred(case)
    geo = geometry(NodeView(graph, node))
    with mock.patch.object(winograd, "BAND_NBYTES", nbytes):
        found = winograd.bands(geo, 4)
    assert (found.rows, found.columns) == (batch * -(-height // 4), -(-width // 4))
    starts = [min(i * found.height, found.rows - found.height) for i in range(found.count)]
    assert {r for s in starts for r in range(s, s + found.height)} == set(range(found.rows))
    assert found.height == 1 or found.height * found.row_nbytes <= nbytes
    assert found.tiles % 4 == 0 and 0 <= found.tiles - found.height * found.columns < 4


def test_where_winograd_is_chosen() -> None:
    def size_for(case: OpCase, style: str = "", **of: Any) -> int:
        calls = [c for c in lowered(case, style, **of) if "winograd" in c.shader]
        return calls[0].overrides["SIZE"] if calls else 0

    def case(channels: int, size: int, **attrs: Any) -> OpCase:
        w = (channels, channels // attrs.get("group", 1), 3, 3)
        return conv((1, channels, size, size), w, **{"pads": [1] * 4, **attrs})

    shares = {"features": frozenset({"subgroups"}), "subgroup_size": 8, "software": True}
    assert size_for(case(64, 56)) == 0, "a GPU would wait for memory"
    assert size_for(case(64, 56), "winograd-2x2") == 2
    assert size_for(case(64, 56), software=True) == size_for(case(64, 56), **shares) == 4
    assert size_for(case(64, 56), "uniform-8x8", software=True) == 0
    assert size_for(case(512, 7), software=True) == 2 and size_for(case(512, 7), **shares) == 0
    assert size_for(case(64, 4), software=True) == 0, "too few tiles"
    for attrs in ({"group": 2}, {"strides": [2, 2]}, {"dilations": [2, 2]}):
        assert size_for(case(64, 56, **attrs), "winograd-4x4", software=True) == 0
    assert size_for(case(64, 56).replace(constants=()), "winograd-4x4") == 0
    assert size_for(case(64, 1500), "winograd-4x4") == 4, "in bands"
    assert size_for(case(1024, 16), "winograd-4x4") == 0, "weights for more than a binding may hold"
