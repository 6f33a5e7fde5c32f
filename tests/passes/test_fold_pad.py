"""Padding goes into windows where the result is exactly the same."""

from __future__ import annotations

import numpy as np
import pytest

from engine.passes.fold_pad import fold_pad
from tests.passes.graphs import check_rewrite, check_untouched, random_weights, run, typed

W = random_weights(w=(3, 2, 3, 3))
PADS = "int64[8] p = {0, 0, 1, 2, 0, 0, 0, 1}"


def conv(attrs: str, h: int, w: int, pad: str = "", constants: str = PADS, op: str = "x") -> str:
    return (
        f"g (float[1, 2, 7, 6] x, float[3, 2, 3, 3] w) => (float[1, 3, {h}, {w}] y) "
        f"{f'<{constants}>' if constants else ''} {{ {pad} y = Conv{attrs}({op}, w) }}"
    )


PAD = "q = Pad(x, p) "


def test_conv() -> None:
    result = check_rewrite(
        fold_pad,
        conv("", 6, 7, PAD, op="q"),
        conv("<pads = [1, 2, 0, 1]>", 6, 7, constants=""),
        W,
        W,
    )
    assert result.graph.nodes[0].origin == ("Pad(q)", "Conv(y)")


def test_conv_with_pads_of_its_own() -> None:
    check_rewrite(
        fold_pad,
        conv("<pads = [1, 1, 1, 1], strides = [2, 2]>", 4, 5, PAD, op="q"),
        conv("<pads = [2, 3, 1, 2], strides = [2, 2]>", 4, 5, constants=""),
        W,
        W,
    )


def test_conv_valid() -> None:
    check_rewrite(
        fold_pad,
        conv('<auto_pad = "VALID">', 6, 7, PAD, op="q"),
        conv("<pads = [1, 2, 0, 1]>", 6, 7, constants=""),
        W,
        W,
    )


def test_axes_and_value_given() -> None:
    check_rewrite(
        fold_pad,
        conv(
            "",
            7,
            6,
            "q = Pad(x, p, v, a) ",
            "int64[4] p = {2, 1, 0, 1}, float v = {0}, int64[2] a = {-1, 2}",
            "q",
        ),
        conv("<pads = [1, 2, 1, 0]>", 7, 6, constants=""),
        W,
        W,
    )


def test_pad_with_two_readers() -> None:
    text = """g (float[1, 2, 7, 6] x, float[3, 2, 3, 3] w)
        => (float[1, 3, 6, 7] y, float[1, 2, 8, 9] z) {} {{ {} }}"""
    check_rewrite(
        fold_pad,
        text.format(f"<{PADS}>", "q = Pad(x, p)  y = Conv(q, w)  z = Neg(q)"),
        text.format(f"<{PADS}>", "q = Pad(x, p)  y = Conv<pads = [1, 2, 0, 1]>(x, w)  z = Neg(q)"),
        W,
        W,
    )


@pytest.mark.parametrize(
    ("pad", "constants", "attrs", "reason"),
    [
        ('q = Pad<mode = "reflect">(x, p) ', PADS, "", "mode is reflect"),
        ("q = Pad(x, p, v) ", PADS + ", float v = {1}", "", "pads with 1.0"),
        ("q = Pad(x, p, v) ", PADS + ", float v = {-0.0}", "", "pads with -0.0"),
        (PAD, "int64[8] p = {0, 0, -1, 2, 0, 0, 2, 1}", "", "crops"),
        (PAD, PADS, '<auto_pad = "SAME_UPPER">', "SAME_UPPER"),
    ],
)
def test_conv_stays(pad: str, constants: str, attrs: str, reason: str) -> None:
    text = conv(attrs, 6, 7, pad, constants, "q")
    if "SAME" in attrs:
        text = text.replace("6, 7] y", "8, 9] y")
    check_untouched(fold_pad, text, W, reason)


def test_padded_channels_stay() -> None:
    check_untouched(
        fold_pad,
        conv("", 5, 4, PAD, "int64[8] p = {0, 1, 0, 0, 0, 0, 0, 0}", "q").replace("2, 7", "1, 7"),
        W,
        "batch or the channels",
    )


def test_pads_that_vary_stay() -> None:
    text = conv("", 6, 7, PAD, "", "q").replace("=> (float[1, 3, 6, 7]", "=> (float[1, 3, k, l]")
    check_untouched(fold_pad, text.replace(") =>", ", int64[8] p) =>"), W, "pads are not constant")


def pool(op: str, attrs: str, pad: str, h: int, w: int, constants: str = PADS) -> str:
    return (
        f"g (float[1, 2, 7, 6] x) => (float[1, 2, {h}, {w}] y) "
        f"{f'<{constants}>' if constants else ''} {{ {pad} y = {op}<{attrs}>(q) }}"
    )


def unpadded(op: str, attrs: str, h: int, w: int, before: str = "") -> str:
    source = "r" if before else "x"
    return (
        f"g (float[1, 2, 7, 6] x) => (float[1, 2, {h}, {w}] y) {{ "
        f"{before} y = {op}<{attrs}>({source}) }}"
    )


def test_average_pool() -> None:
    kernel = "kernel_shape = [3, 3], strides = [1, 2]"
    check_rewrite(
        fold_pad,
        pool("AveragePool", kernel, PAD, 6, 4),
        unpadded("AveragePool", f"{kernel}, pads = [1, 2, 0, 1], count_include_pad = 1", 6, 4),
    )


def test_average_pool_that_counts_its_own() -> None:
    kernel = "kernel_shape = [4, 4], count_include_pad = 1"
    check_rewrite(
        fold_pad,
        pool("AveragePool", f"{kernel}, pads = [1, 1, 1, 1]", PAD, 7, 8),
        unpadded("AveragePool", f"{kernel}, pads = [2, 3, 1, 2]", 7, 8),
    )


def test_max_pool_padded_with_the_least() -> None:
    graph = typed(
        pool(
            "MaxPool", "kernel_shape = [3, 3]", "q = Pad(x, p, v) ", 6, 7, PADS + ", float v = {0}"
        )
    )
    least = graph.values["v"].replace(constant=np.array(-np.inf, np.float32))
    graph = graph.replace(values={**graph.values, "v": least})
    result = fold_pad(graph)
    (node,) = result.graph.nodes
    assert (node.op_type, node.attrs["pads"]) == ("MaxPool", [1, 2, 0, 1])
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, 7, 6)).astype(np.float32) - 9}
    np.testing.assert_array_equal(run(result.graph, feed)[0], run(graph, feed)[0])


def test_max_pool_of_what_is_not_negative() -> None:
    check_rewrite(
        fold_pad,
        pool("MaxPool", "kernel_shape = [3, 3]", "r = Relu(x)  q = Pad(r, p) ", 6, 7),
        unpadded("MaxPool", "kernel_shape = [3, 3], pads = [1, 2, 0, 1]", 6, 7, "r = Relu(x) "),
    )


RELU = "r = Relu(x)  q = Pad(r, p) "


@pytest.mark.parametrize(
    ("op", "attrs", "pad", "size", "reason"),
    [
        ("AveragePool", "kernel_shape = [3, 3], ceil_mode = 1", PAD, (6, 7), "ceil_mode"),
        (
            "AveragePool",
            "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
            PAD,
            (8, 9),
            "does not count",
        ),
        ("AveragePool", "kernel_shape = [2, 2]", PAD, (7, 8), "not smaller than the window"),
        ("MaxPool", "kernel_shape = [3, 3]", PAD, (6, 7), "may exceed the elements"),
        ("MaxPool", "kernel_shape = [3, 3], dilations = [2, 2]", RELU, (4, 5), "dilated"),
        ("MaxPool", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", RELU, (8, 9), "of its own"),
    ],
)
def test_pool_stays(op: str, attrs: str, pad: str, size: tuple[int, int], reason: str) -> None:
    check_untouched(fold_pad, pool(op, attrs, pad, *size), reason=reason)


def test_indices_count_the_padding() -> None:
    check_untouched(
        fold_pad,
        f"""g (float[1, 2, 7, 6] x) => (float[1, 2, 6, 7] y, int64[1, 2, 6, 7] i) <{PADS}> {{
            {RELU} y, i = MaxPool<kernel_shape = [3, 3]>(q) }}""",
        reason="indices",
    )


def test_size_that_may_be_zero() -> None:
    text = pool("MaxPool", "kernel_shape = [3, 3]", RELU, 6, 7)
    text = text.replace("2, 7, 6] x", "2, h, 6] x").replace("2, 6, 7] y", "2, k, 7] y")
    check_untouched(fold_pad, text, reason="may be 0")
