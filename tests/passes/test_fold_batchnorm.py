"""Scales and shifts go into constant weights in front of them, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from engine.passes.fold_batchnorm import fold_batchnorm
from tests.passes.graphs import (
    Array,
    Weights,
    check_rewrite,
    check_same_results,
    check_untouched,
    random_weights,
    typed,
)

EPSILON = 1e-3


def norm_weights(channels: int) -> dict[str, Array]:
    shape = (channels,)
    found = random_weights(7, s=shape, b=shape, m=shape, v=shape)
    return {**found, "v": np.abs(found["v"]) + 0.5}


def factors(norm: Weights) -> tuple[Array, Array]:
    """Scale and shift of the normalisation."""
    scale = norm["s"] / np.sqrt(norm["v"] + EPSILON)
    return scale, norm["b"] - norm["m"] * scale


def norm_text(channels: int) -> str:
    return ", ".join(f"float[{channels}] {n}" for n in "sbmv")


BN = f"y = BatchNormalization<epsilon = {EPSILON}>(c, s, b, m, v)"


@pytest.mark.parametrize("bias", [False, True])
def test_conv(bias: bool) -> None:
    norm = norm_weights(6)
    weights = random_weights(w=(6, 2, 3, 3), k=(6,))
    given = weights if bias else {"w": weights["w"]}
    extra = ", float[6] k" if bias else ""
    scale, shift = factors(norm)
    folded = {
        "w": weights["w"] * scale[:, None, None, None],
        "k": shift + (weights["k"] * scale if bias else 0),
    }
    result = check_rewrite(
        fold_batchnorm,
        f"""g (float[2, 4, 7, 5] x, float[6, 2, 3, 3] w{extra}, {norm_text(6)})
            => (float[2, 6, 7, 5] y) {{
            c = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w{", k" if bias else ""})  {BN} }}""",
        """g (float[2, 4, 7, 5] x, float[6, 2, 3, 3] w, float[6] k) => (float[2, 6, 7, 5] y) {
            y = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w, k) }""",
        {**given, **norm},
        folded,
    )
    assert result.graph.nodes[0].origin == ("Conv(c)", "BatchNormalization(y)")


def test_transposed_conv_in_groups() -> None:
    """Channel m of group j is column m of the rows of group j; each group is checked alone.

    The reference does not compute ConvTranspose in groups.
    """
    norm = norm_weights(6)
    weights = random_weights(w=(4, 3, 3))
    text = f"""g (float[2, 4, 5] x, float[4, 3, 3] w, {norm_text(6)}) => (float[2, 6, 7] y) {{
        c = ConvTranspose<group = 2>(x, w)  {BN} }}"""
    graph = fold_batchnorm(typed(text, {**weights, **norm})).graph
    (node,) = graph.nodes
    assert node.op_type == "ConvTranspose"
    folded, bias = graph.constant(node.inputs[1]), graph.constant(node.inputs[2])
    assert folded is not None and bias is not None
    for group in range(2):
        part = slice(3 * group, 3 * group + 3)
        rows = slice(2 * group, 2 * group + 2)
        single = f"""g (float[2, 2, 5] x, float[2, 3, 3] w, {norm_text(3)}) => (float[2, 3, 7] y) {{
            c = ConvTranspose(x, w)  {BN} }}"""
        plain = """g (float[2, 2, 5] x, float[2, 3, 3] w, float[3] k) => (float[2, 3, 7] y) {
            y = ConvTranspose(x, w, k) }"""
        own = {k: a[part] for k, a in norm.items()} | {"w": weights["w"][rows]}
        check_same_results(
            typed(single, own), typed(plain, {"w": folded[rows].copy(), "k": bias[part].copy()})
        )


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [(), (5,), (1, 5), (3, 1), (3, 5), (1,)])
def test_gemm(transposed: int, bias: tuple[int, ...]) -> None:
    norm = norm_weights(5)
    shape = (5, 4) if transposed else (4, 5)
    weights = random_weights(w=shape, k=bias)
    scale, shift = factors(norm)
    check_rewrite(
        fold_batchnorm,
        f"""g (float[3, 4] x, float[{shape[0]}, {shape[1]}] w, float{list(bias)} k, {norm_text(5)})
            => (float[3, 5] y) {{
            c = Gemm<alpha = 0.5, beta = 2.0, transB = {transposed}>(x, w, k)  {BN} }}""".replace(
            "float[] k", "float k"
        ),
        f"""g (float[3, 4] x, float[{shape[0]}, {shape[1]}] w, float[5] k) => (float[3, 5] y) {{
            y = Gemm<alpha = 0.5, beta = 1.0, transB = {transposed}>(x, w, k) }}""",
        {**weights, **norm},
        {
            "w": weights["w"] * (scale[:, None] if transposed else scale),
            "k": 2 * weights["k"] * scale + shift,
        },
    )


def test_matmul_becomes_gemm() -> None:
    norm = norm_weights(5)
    weights = random_weights(w=(4, 5))
    scale, shift = factors(norm)
    check_rewrite(
        fold_batchnorm,
        f"g (float[n, 4] x, float[4, 5] w, {norm_text(5)}) => (float[n, 5] y) {{"
        f"c = MatMul(x, w)  {BN} }}",
        "g (float[n, 4] x, float[4, 5] w, float[5] k) => (float[n, 5] y) { y = Gemm(x, w, k) }",
        {**weights, **norm},
        {"w": weights["w"] * scale, "k": shift},
    )


def test_chain_of_arithmetic() -> None:
    weights = random_weights(w=(3, 2, 3), u=(3, 1), p=(1, 3, 1))
    u, p = weights["u"], weights["p"]
    check_rewrite(
        fold_batchnorm,
        """g (float[2, 2, 9] x, float[3, 2, 3] w, float[3, 1] u, float[1, 3, 1] p)
            => (float[2, 3, 7] y) <float h = {2}, float[1, 1, 1] q = {0.25}> {
            c = Conv(x, w)  d = Mul(u, c)  e = Add(d, p)  f = Div(e, q)  y = Sub(h, f) }""",
        """g (float[2, 2, 9] x, float[3, 2, 3] w, float[3] k) => (float[2, 3, 7] y) {
            y = Conv(x, w, k) }""",
        weights,
        {"w": -4 * weights["w"] * u[:, :, None], "k": 2 - 4 * p.reshape(3)},
    )


def test_negation() -> None:
    weights = random_weights(w=(3, 2, 3), k=(3,))
    check_rewrite(
        fold_batchnorm,
        """g (float[2, 2, 9] x, float[3, 2, 3] w, float[3] k) => (float[2, 3, 7] y) {
            c = Conv(x, w, k)  y = Neg(c) }""",
        """g (float[2, 2, 9] x, float[3, 2, 3] w, float[3] k) => (float[2, 3, 7] y) {
            y = Conv(x, w, k) }""",
        weights,
        {k: -array for k, array in weights.items()},
    )


def test_scale_into_matmul() -> None:
    weights = random_weights(w=(4, 5), u=(5,))
    check_rewrite(
        fold_batchnorm,
        """g (float[2, n, 4] x, float[4, 5] w, float[5] u) => (float[2, n, 5] y) {
            c = MatMul(x, w)  y = Mul(c, u) }""",
        "g (float[2, n, 4] x, float[4, 5] w) => (float[2, n, 5] y) { y = MatMul(x, w) }",
        weights,
        {"w": weights["w"] * weights["u"]},
    )


def test_shift_of_matmul_stays() -> None:
    check_untouched(
        fold_batchnorm,
        """g (float[2, 4] x, float[4, 5] w, float[5] u) => (float[2, 5] y) {
            c = MatMul(x, w)  y = Add(c, u) }""",
        random_weights(w=(4, 5), u=(5,)),
    )


@pytest.mark.parametrize("scale", [(), (1,), (5,)])
@pytest.mark.parametrize("bias", [(5,), (1,), (3, 1), (1, 3, 5)])
def test_scale_past_the_bias_of_a_matmul(scale: tuple[int, ...], bias: tuple[int, ...]) -> None:
    weights = random_weights(w=(4, 5), b=bias, u=scale)
    u, b = (", ".join(map(str, shape)) for shape in (scale, bias))
    check_rewrite(
        fold_batchnorm,
        f"""g (float[2, 3, 4] x, float[4, 5] w, float[{b}] b, float{f"[{u}]" if u else ""} u)
            => (float[2, 3, 5] y) {{ c = MatMul(x, w)  d = Add(b, c)  y = Mul(u, d) }}""",
        """g (float[2, 3, 4] x, float[4, 5] w, float[{b}] b) => (float[2, 3, 5] y) {
            c = MatMul(x, w)  y = Add(c, b) }""".replace(
            "{b}", ", ".join(map(str, np.broadcast_shapes(bias, scale)))
        ),
        weights,
        {"w": weights["w"] * weights["u"], "b": weights["b"] * weights["u"]},
    )


def test_division_and_negation_past_a_bias() -> None:
    weights = random_weights(w=(4, 5), b=(5,), u=(5,))
    check_rewrite(
        fold_batchnorm,
        """g (float[n, 4] x, float[4, 5] w, float[5] b, float[5] u) => (float[n, 5] y) {
            c = MatMul(x, w)  d = Add(c, b)  e = Div(d, u)  y = Neg(e) }""",
        """g (float[n, 4] x, float[4, 5] w, float[5] b) => (float[n, 5] y) {
            c = MatMul(x, w)  y = Add(c, b) }""",
        weights,
        {"w": -weights["w"] / weights["u"], "b": -weights["b"] / weights["u"]},
    )


@pytest.mark.parametrize(
    ("body", "output", "reason"),
    [
        ("d = Add(c, b)  y = Mul(d, u)  z = Exp(c)", ", float[2, 5] z", "Exp"),
        ("d = Add(c, b)  y = Mul(d, u)", ", float[2, 5] d", "an output of the graph"),
        ("d = Add(c, v)  y = Mul(d, u)", "", ""),
        ("d = Add(c, b)  y = Mul(d, v)", "", ""),
        ("d = Add(c, b)  y = Div(u, d)", "", ""),
    ],
)
def test_a_scale_past_a_bias_that_stays(body: str, output: str, reason: str) -> None:
    check_untouched(
        fold_batchnorm,
        f"""g (float[2, 4] x, float[2, 5] v, float[4, 5] w, float[5] b, float[5] u)
            => (float[2, 5] y{output}) {{ c = MatMul(x, w)  {body} }}""",
        random_weights(w=(4, 5), b=(5,), u=(5,)),
        reason,
    )


CONV = "g (float[2, 2, 9] x, float[3, 2, 3] w{inputs}) => (float[2, 3, 7] y{outputs}) {{ {body} }}"


def conv_text(body: str, inputs: str = "", outputs: str = "") -> str:
    return CONV.format(inputs=inputs, outputs=outputs, body=body)


def test_second_reader() -> None:
    check_untouched(
        fold_batchnorm,
        conv_text(f"c = Conv(x, w)  {BN}  z = Neg(c)", f", {norm_text(3)}", ", float[2, 3, 7] z"),
        {**random_weights(w=(3, 2, 3)), **norm_weights(3)},
        "BatchNormalization 'y' not folded: the result of Conv 'c' is needed as it is: Neg 'z'",
    )


def test_output_in_between() -> None:
    check_untouched(
        fold_batchnorm,
        conv_text(f"c = Conv(x, w)  {BN}", f", {norm_text(3)}", ", float[2, 3, 7] c"),
        {**random_weights(w=(3, 2, 3)), **norm_weights(3)},
        "it is an output of the graph",
    )


def test_weights_that_vary() -> None:
    check_untouched(
        fold_batchnorm,
        conv_text(f"c = Conv(x, w)  {BN}", f", {norm_text(3)}"),
        norm_weights(3),
        "the weights of Conv 'c' are not constant",
    )


def test_statistics_that_vary() -> None:
    norm = norm_weights(3)
    del norm["m"]
    check_untouched(
        fold_batchnorm,
        conv_text(f"c = Conv(x, w)  {BN}", f", {norm_text(3)}"),
        {**random_weights(w=(3, 2, 3)), **norm},
        "not constant",
    )


def test_no_weights_in_front() -> None:
    check_untouched(
        fold_batchnorm,
        f"g (float[2, 3, 7] x, {norm_text(3)}) => (float[2, 3, 7] y) {{ c = Neg(x)  {BN} }}",
        norm_weights(3),
        "comes from Neg 'c'",
    )


def test_channels_of_matmul_elsewhere() -> None:
    check_untouched(
        fold_batchnorm,
        f"g (float[2, 3, 4] x, float[4, 5] w, {norm_text(3)}) => (float[2, 3, 5] y) {{"
        f"c = MatMul(x, w)  {BN} }}",
        {**random_weights(w=(4, 5)), **norm_weights(3)},
        "not along axis 1",
    )


@pytest.mark.parametrize(
    ("shape", "out"),
    [((7,), "[2, 3, 7]"), ((1, 2, 3, 1), "[1, 2, 3, 7]"), ((1, 1, 3, 1), "[1, 2, 3, 7]")],
    ids=["width", "growing", "more dims"],
)
def test_constant_that_is_not_per_channel(shape: tuple[int, ...], out: str) -> None:
    check_untouched(
        fold_batchnorm,
        f"g (float[2, 2, 9] x, float[3, 2, 3] w, float{list(shape)} u) => (float{out} y) {{"
        "c = Conv(x, w)  y = Mul(c, u) }",
        random_weights(w=(3, 2, 3), u=shape),
        "not one number per channel",
    )


def test_one_channel_that_broadcasts() -> None:
    check_untouched(
        fold_batchnorm,
        """g (float[2, 2, 9] x, float[1, 2, 3] w, float[3, 1] u) => (float[2, 3, 7] y) {
            c = Conv(x, w)  y = Mul(c, u) }""",
        random_weights(w=(1, 2, 3), u=(3, 1)),
        "not one number per channel",
    )


def test_division_by_zero() -> None:
    check_untouched(
        fold_batchnorm,
        conv_text("c = Conv(x, w)  z = Constant<value_float = 0.0>()  y = Div(c, z)"),
        random_weights(w=(3, 2, 3)),
        "leave the range of float32",
    )


def test_float16_overflow() -> None:
    check_untouched(
        fold_batchnorm,
        """g (float16[2, 2, 9] x, float16[3, 2, 3] w, float16[1] u) => (float16[2, 3, 7] y) {
            c = Conv(x, w)  y = Mul(c, u) }""",
        {"w": np.full((3, 2, 3), 300, np.float16), "u": np.array([300], np.float16)},
        "leave the range of float16",
    )


def test_reversed_division_is_not_linear() -> None:
    check_untouched(
        fold_batchnorm,
        conv_text("c = Conv(x, w)  z = Constant<value_float = 1.0>()  y = Div(z, c)"),
        random_weights(w=(3, 2, 3)),
    )


def test_integers_stay() -> None:
    check_untouched(
        fold_batchnorm,
        "g (int32[2, 4] x, int32[4, 5] w, int32 u) => (int32[2, 5] y) {"
        "c = MatMul(x, w)  y = Mul(c, u) }",
        {"w": np.arange(20, dtype=np.int32).reshape(4, 5), "u": np.array(3, np.int32)},
    )


def test_statistics_of_another_number_of_channels() -> None:
    text = """g (float[2, 2, 9] x, float[3, 2, 3] w, float[1] s) => (float[2, 3, 7] y) {
        c = Conv(x, w)  y = BatchNormalization(c, s, s, s, s) }"""
    weights = random_weights(w=(3, 2, 3), s=(1,))
    check_untouched(fold_batchnorm, text, weights, "not one number for each channel")
