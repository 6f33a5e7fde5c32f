"""Runs of scales and shifts by constants become one of each."""

from __future__ import annotations

import numpy as np
import pytest

from engine.passes.base import PassResult
from engine.passes.merge_affine import merge_affine
from engine.runtime.session import InferenceSession
from tests.passes.graphs import Array, check_rewrite, check_untouched
from tests.runtime.models import parse

CHANCE = np.random.default_rng(0)
A, B, C, D = (CHANCE.standard_normal((3, 1, 1)).astype(np.float32) for _ in range(4))
TWO, ROW = np.float32(2), CHANCE.standard_normal(5).astype(np.float32)

NUMBERS = {"a": A, "b": B, "c": C, "d": D, "two": TWO, "row": ROW}
IMAGE = "f (float[n, 3, h, 5] x, float[3, 1, 1] a, float[3, 1, 1] b, float[3, 1, 1] c, "
IMAGE += "float[3, 1, 1] d, float two, float[5] row) => (float[n, 3, h, 5] y) "


def rewrite(body: str, after: str, **new: Array) -> PassResult:
    declared = "".join(f", float[{','.join(map(str, v.shape))}] {n}" for n, v in new.items())
    start = IMAGE + "{ " + body + " }"
    end = f"f (float[n, 3, h, 5] x{declared}) => (float[n, 3, h, 5] y) {{ {after} }}"
    return check_rewrite(merge_affine, start, end, NUMBERS, new)


def untouched(body: str, reason: str = "", **changed: Array) -> None:
    check_untouched(merge_affine, IMAGE + "{ " + body + " }", {**NUMBERS, **changed}, reason)


def test_two_scales_and_shifts() -> None:
    result = rewrite(
        "p = Mul(x, a)  q = Add(p, b)  r = Mul(c, q)  y = Add(r, d)",
        "p = Mul(x, s)  y = Add(p, t)",
        s=A * C,
        t=B * C + D,
    )
    assert result.applied == ("Mul 'p', Add 'q', Mul 'r', Add 'y' merged",)


def test_constants_of_other_shapes() -> None:
    rewrite(
        "p = Sub(x, row)  q = Div(p, two)  y = Sub(b, q)",
        "p = Mul(x, s)  y = Add(p, t)",
        s=np.array(-0.5, np.float32),
        t=ROW / 2 + B,
    )


@pytest.mark.parametrize(
    ("body", "after", "new"),
    [
        ("p = Mul(x, a)  y = Mul(p, two)", "y = Mul(x, s)", {"s": A * 2}),
        ("p = Add(x, a)  y = Sub(p, row)", "y = Add(x, s)", {"s": A - ROW}),
        (
            "p = Add(x, a)  q = Sub(p, a)  y = Mul(q, row)",
            "y = Mul(x, s)",
            {"s": ROW},
        ),
    ],
)
def test_one_is_enough(body: str, after: str, new: dict[str, Array]) -> None:
    rewrite(body, after, **new)


@pytest.mark.parametrize(
    "body",
    [
        "p = Mul(x, a)  y = Add(p, b)",
        "p = Add(x, a)  y = Mul(p, b)",
        "p = Mul(x, a)  q = Add(p, b)  r = Exp(q)  y = Mul(r, c)",
        "p = Mul(x, a)  q = Div(two, p)  y = Mul(q, c)",
        "p = Mul(x, a)  q = Mul(p, b)  y = Add(p, q)",
        "p = Mul(x, a)  q = Mul(p, x)  y = Mul(q, b)",
    ],
)
def test_what_is_left(body: str) -> None:
    untouched(body)


def test_numbers_that_overflow() -> None:
    big = np.full((3, 1, 1), 1e30, np.float32)
    untouched("p = Mul(x, a)  y = Mul(p, b)", "leave the range of float32", a=big, b=big)


def test_numbers_that_overflow_in_between() -> None:
    big, small = (np.full((3, 1, 1), n, np.float32) for n in (1e30, 1e-30))
    body = "p = Mul(x, a)  q = Mul(p, a)  r = Mul(q, b)  y = Mul(r, b)"
    untouched(body, "leave the range of float32", a=big, b=small)


def test_a_sum_that_rounds() -> None:
    """1.5 * 2^23 and its like round what they are added to."""
    magic = np.full((3, 1, 1), 1.5 * 2**23, np.float32)
    body = "p = Mul(x, a)  q = Add(p, b)  y = Sub(q, b)"
    untouched(body, "a sum rounds what another takes off again", b=magic)


def test_a_channel_that_hardly_counts_is_merged_too() -> None:
    """As where a normalisation gave it a scale near zero, and no shift is taken off again."""
    faint = np.array([1e-9, 1, 2], np.float32).reshape(3, 1, 1)
    body, weights = "p = Mul(x, a)  q = Add(p, b)  y = Add(q, d)", {**NUMBERS, "a": faint}
    after = "f (float[n, 3, h, 5] x, float[3, 1, 1] a, float[3, 1, 1] t) => (float[n, 3, h, 5] y) "
    after += "{ p = Mul(x, a)  y = Add(p, t) }"
    new = {"a": faint, "t": B + D}
    check_rewrite(merge_affine, IMAGE + "{ " + body + " }", after, weights, new)


def test_shapes_that_grow() -> None:
    text = """f (float[n, 1] x, float[1, 4] a, float[4] b) => (float[n, 4] y) {
        p = Mul(x, a)  y = Mul(p, b) }"""
    weights = {"a": np.ones((1, 4), np.float32), "b": np.full(4, 2, np.float32)}
    check_untouched(merge_affine, text, weights)


def test_behind_a_normalisation_written_out_in_the_same_round() -> None:
    model = parse(
        """g (float[1, 3, 2] x) => (float[1, 3, 2] y) {
          z = Constant <value = float[1, 3, 2] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> ()
          half = Constant <value_float = 0.5> ()
          k = Constant <value = float[3] {1.0, 2.0, 4.0}> ()
          d = Sub(x, z)
          s = Mul(d, half)
          y = BatchNormalization <epsilon = 0.0> (s, k, k, k, k)
        }"""
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 2)).astype(np.float32)
    z = np.arange(1, 7, dtype=np.float32).reshape(1, 3, 2)
    k = np.array([1, 2, 4], np.float32)[:, None]
    with InferenceSession(model, device="cpu") as session:
        (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, ((x - z) / 2 - k) / np.sqrt(k) * k + k, rtol=1e-5, atol=1e-5)
