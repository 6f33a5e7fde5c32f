"""Normalisation that no weights take becomes a product and a sum, and only where that is exact."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fusion import fuse
from engine.passes import run_passes
from engine.passes.lower_batchnorm import lower_batchnorm
from engine.target import Target
from tests.passes.graphs import Weights, check_rewrite, check_untouched, random_weights, typed

EPSILON = 1e-3
FINE = random_weights(3, s=(4,), b=(4,), m=(4,))
NORM = {**FINE, "v": np.abs(random_weights(4, v=(4,))["v"]) + 0.5}
WEIGHTS = "float[4] s, float[4] b, float[4] m, float[4] v"
BN = f"BatchNormalization<epsilon = {EPSILON}>"


@pytest.mark.parametrize(("shape", "along"), [("2, 4", (4,)), ("2, 4, 3, 5", (4, 1, 1))])
def test_a_product_and_a_sum(shape: str, along: tuple[int, ...]) -> None:
    factor = NORM["s"] / np.sqrt(NORM["v"] + EPSILON)
    shift = NORM["b"] - NORM["m"] * factor
    dims = ", ".join(map(str, along))
    check_rewrite(
        lower_batchnorm,
        f"g (float[{shape}] x, {WEIGHTS}) => (float[{shape}] y) {{ y = {BN}(x, s, b, m, v) }}",
        f"""g (float[{shape}] x, float[{dims}] f, float[{dims}] h) => (float[{shape}] y) {{
            p = Mul(x, f)  y = Add(p, h) }}""",
        NORM,
        {"f": factor.reshape(along), "h": shift.reshape(along)},
    )


@pytest.mark.parametrize(
    ("text", "weights", "why"),
    [
        (
            f"g (float[2, c] x, {WEIGHTS}) => (float[2, c] y) {{ y = {BN}(x, s, b, m, v) }}",
            NORM,
            "calls decide how many channels",
        ),
        (
            f"g (float[2, 4] x, {WEIGHTS}) => (float[2, 4] y) {{ y = {BN}(x, s, b, m, v) }}",
            {n: a for n, a in NORM.items() if n != "m"},
            "mean or variance is not constant",
        ),
        (
            f"""g (float[2, 4] x, {WEIGHTS}) => (float[2, 4] y, float[4] r) {{
                y, r, q = {BN[:-1]}, training_mode = 1>(x, s, b, m, v) }}""",
            NORM,
            "training mode",
        ),
        (
            "g (float16[2, 4] x, float16[4] s, float16[4] b, float16[4] m, float16[4] v) "
            f"=> (float16[2, 4] y) {{ y = {BN}(x, s, b, m, v) }}",
            {n: a.astype(np.float16) for n, a in NORM.items()},
            "round twice",
        ),
        (
            f"g (float[2, 4] x, {WEIGHTS}) => (float[2, 4] y) {{ y = {BN}(x, s, b, m, v) }}",
            {**NORM, "v": np.full(4, -1.0, np.float32)},
            "range of float32",
        ),
    ],
)
def test_left_as_it_is(text: str, weights: Weights, why: str) -> None:
    check_untouched(lower_batchnorm, text, weights, why)


def test_what_can_be_folded_into_weights_is() -> None:
    text = f"""g (float[2, 4, 5, 5] x, float[4, 4, 1, 1] w, {WEIGHTS}) => (float[2, 4, 5, 5] y) {{
        c = Conv(x, w)  y = {BN}(c, s, b, m, v) }}"""
    graph = typed(text, {**NORM, **random_weights(5, w=(4, 4, 1, 1))})
    assert [n.op_type for n in run_passes(graph).graph.nodes] == ["Conv"]


def test_what_comes_out_of_a_join_fuses_with_what_follows() -> None:
    text = f"""g (float[2, 1, 5] x, float[2, 3, 5] w, {WEIGHTS}) => (float[2, 4, 5] y) {{
        c = Concat<axis = 1>(x, w)  n = {BN}(c, s, b, m, v)  y = Relu(n) }}"""
    found = run_passes(typed(text, NORM)).graph
    assert [n.op_type for n in found.nodes] == ["Concat", "Mul", "Add", "Relu"]
    groups = fuse(found, lambda node: True, Target.baseline()).groups
    assert [g.label for g in groups] == ["Concat + Mul + Add + Relu"]
