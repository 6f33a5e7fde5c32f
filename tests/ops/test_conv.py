"""Conv and ConvTranspose: NumPy, shape rules and kernels."""

from __future__ import annotations

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
from engine.errors import ShapeError
from engine.runtime import targets
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
    (call,) = lowered(case)
    pixels = int(call.params["rows"]) * int(call.params["columns"])  # type: ignore[arg-type]
    assert call.text["STORE"].count("store_y(") == pixels
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


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CONV, *TRANSPOSED], ids=case_id)
def test_tiles_for_software(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "is_software", lambda kind: True)
    check_gpu(case)


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
