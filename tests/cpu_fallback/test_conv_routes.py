"""Every way the NumPy convolution takes, in pieces of any size, against a sum over taps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from cpu_fallback import convolve, convolve_pieces, registry
from cpu_fallback.windows import windows

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "taps": ((2, 16, 7, 11), (7, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "winograd": ((1, 40, 41, 46), (32, 40, 3, 3), {"pads": [1, 1, 1, 1]}),
    "winograd, whole tiles": ((2, 33, 46, 34), (37, 33, 3, 3), {}),
    "winograd, padded": ((2, 32, 37, 43), (41, 32, 3, 3), {"pads": [3, 0, 2, 5]}),
    "winograd, cropped": ((1, 32, 47, 43), (41, 32, 3, 3), {"pads": [-2, -1, 1, -3]}),
    "taps, 1-D": ((1, 9, 41), (5, 9, 4), {"dilations": [3], "pads": [2, 0]}),
    "taps, groups": ((2, 32, 5, 13), (8, 8, 2, 3), {"group": 4, "pads": [0, 2, 1, 0]}),
    "taps, 3-D": ((1, 8, 5, 6, 11), (3, 8, 2, 3, 2), {"pads": [1, 0, 1, 0, 1, 0]}),
    "taps without padding": ((1, 8, 9, 30), (4, 8, 3, 1), {}),
    "columns": ((1, 3, 23, 31), (8, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "columns, 1-D": ((2, 5, 31), (9, 5, 4), {"strides": [2], "dilations": [2], "pads": [3, 1]}),
    "columns, 3-D": ((1, 3, 5, 6, 7), (4, 3, 2, 3, 2), {"pads": [1, 0, 1, 0, 2, 1]}),
    "columns, cropped": ((1, 3, 23, 31), (8, 3, 3, 3), {"pads": [-2, -1, -1, 3]}),
    "columns, long stride": ((1, 2, 40, 9), (4, 2, 2, 3), {"strides": [3, 1]}),
    "columns, few windows": ((1, 6, 3, 3), (40, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    "columns, images": ((2, 32, 9, 9), (16, 32, 3, 3), {"strides": [2, 2]}),
    "columns, groups": ((2, 12, 8, 9), (8, 3, 3, 2), {"group": 4, "pads": [1, 2, 0, 1]}),
    "columns, two outputs a channel": (
        (1, 5, 9, 14),
        (10, 1, 3, 3),
        {"group": 5, "pads": [1, 1, 1, 1]},
    ),
    "columns, depth": ((1, 5, 4, 5, 6), (5, 1, 3, 2, 3), {"group": 5, "pads": [1, 0, 1, 1, 1, 1]}),
    "depthwise, small": ((2, 13, 7, 7), (13, 1, 3, 3), {"group": 13, "pads": [1, 1, 1, 1]}),
    "depthwise, small, strides": (
        (1, 9, 15, 12),
        (9, 1, 5, 3),
        {"group": 9, "strides": [2, 3], "dilations": [1, 2], "pads": [2, 0, 1, 4]},
    ),
    "depthwise, small, cropped": (
        (1, 3, 11, 9),
        (3, 1, 3, 3),
        {"group": 3, "pads": [-1, 2, 3, -2]},
    ),
    "depthwise": ((2, 13, 9, 17), (13, 1, 5, 5), {"group": 13, "pads": [2, 2, 2, 2]}),
    "depthwise, 1-D": ((2, 13, 29), (13, 1, 5), {"group": 13, "pads": [4, 0], "strides": [3]}),
    "depthwise, strides": ((1, 7, 19, 40), (7, 1, 5, 3), {"group": 7, "strides": [2, 3]}),
    "depthwise, dilated": (
        (1, 7, 19, 40),
        (7, 1, 3, 4),
        {"group": 7, "strides": [2, 1], "dilations": [3, 2], "pads": [0, 3, 2, 0]},
    ),
    "depthwise, a common factor": (
        (1, 3, 29, 21),
        (3, 1, 5, 2),
        {"group": 3, "strides": [4, 2], "dilations": [6, 2], "pads": [5, 1, 7, 2]},
    ),
    "depthwise, cropped": ((1, 3, 11, 12), (3, 1, 3, 3), {"group": 3, "pads": [-1, 2, 3, -2]}),
    "depthwise, small, mostly padding": (
        (1, 3, 2, 1),
        (3, 1, 3, 3),
        {"group": 3, "pads": [4, 3, 4, 3]},
    ),
    "pointwise": ((2, 6, 5, 7), (4, 3, 1, 1), {"group": 2, "strides": [2, 1]}),
    "pointwise, images": ((3, 6, 5, 7), (40, 6, 1, 1), {}),
    "pointwise, few outputs": ((3, 6, 5, 7), (4, 6, 1, 1), {}),
    "pointwise, many pixels": ((2, 6, 150, 151), (40, 6, 1, 1), {}),
    "pointwise, one pixel": ((2, 40, 1, 1), (40, 40, 1, 1), {}),
    "columns, few outputs": ((3, 3, 9, 11), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "columns, many channels": ((2, 40, 9, 11), (12, 40, 2, 3), {"pads": [1, 1, 1, 1]}),
    "columns, many channels, groups": ((2, 40, 9, 11), (40, 10, 2, 3), {"group": 4}),
    "pointwise, padded": ((1, 6, 5, 7), (4, 6, 1, 1), {"pads": [1, 0, 0, 2]}),
}


def by_hand(x: Any, w: Any, b: Any, attrs: dict[str, Any]) -> Any:
    """float64, tap by tap."""
    rank, group = x.ndim - 2, attrs.get("group", 1)
    pads = attrs.get("pads", [0] * (2 * rank))
    strides, spread = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    for axis in range(rank):
        for side, at in ((0, pads[axis]), (1, pads[axis + rank])):
            width = [(0, 0)] * x.ndim
            width[axis + 2] = (max(at, 0), 0) if side == 0 else (0, max(at, 0))
            keep = (
                slice(max(-at, 0), None) if side == 0 else slice(0, x.shape[axis + 2] + min(at, 0))
            )
            x = np.pad(x[(slice(None),) * (axis + 2) + (keep,)], width)
    out = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(x.shape[2:], w.shape[2:], spread, strides, strict=True)
    ]
    parts = x.reshape(x.shape[0], group, -1, *x.shape[2:]).astype(np.float64)
    kernel = w.reshape(group, -1, *w.shape[1:]).astype(np.float64)
    y = np.zeros((x.shape[0], group, kernel.shape[1], *out))
    for tap in itertools.product(*map(range, w.shape[2:])):
        at = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, spread, out, strides, strict=True)
        )
        y += np.einsum("gmc,ngc...->ngm...", kernel[(..., *tap)], parts[(..., *at)])
    return y.reshape(x.shape[0], -1, *out) + b.reshape(-1, *[1] * rank)


@pytest.mark.parametrize("name", CASES)
def test_route(name: str) -> None:
    x_shape, w_shape, attrs = CASES[name]
    group, window = attrs.get("group", 1), {k: v for k, v in attrs.items() if k != "group"}
    win = windows(x_shape[2:], w_shape[2:], **window)
    way = convolve.route(win, w_shape[1], w_shape[0] // group, group, True)
    assert way.name.lower() == name.split(",")[0].split()[0]


@pytest.mark.parametrize("nbytes", [1, 5000, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_conv(name: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x_shape, w_shape, attrs = CASES[name]
    monkeypatch.setattr(convolve_pieces, "PIECE_NBYTES", nbytes)
    chance = np.random.default_rng(0)
    x, w = (chance.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    b = chance.standard_normal(w_shape[0]).astype(np.float32)
    want = by_hand(x, w, b, attrs)
    tolerance = 4e-6 * max(5.0, np.abs(want).max())
    call = registry.prepare("Conv", "", 11, attrs, 1, [1, 2])
    for _ in range(2):
        np.testing.assert_allclose(call([x, w, b])[0], want, rtol=2e-5, atol=tolerance)
    (plain,) = registry.run("Conv", "", 11, attrs, [x, w], 1)
    np.testing.assert_allclose(
        plain, want - b.reshape(-1, *[1] * (x.ndim - 2)), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_stays_where_it_is(name: str) -> None:
    """Only windows that hold an infinite pixel, or one that overflows, are not finite."""
    x_shape, w_shape, attrs = CASES[name]
    chance = np.random.default_rng(0)
    x, w = (chance.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    b = chance.standard_normal(w_shape[0]).astype(np.float32)
    call = registry.prepare("Conv", "", 11, attrs, 1, [1, 2])
    with np.errstate(all="ignore"):
        for number in (np.nan, np.inf, -np.inf, np.float32(3e38)):
            changed = x.copy()
            changed[(0, -1, *(n // 2 for n in x.shape[2:]))] = number
            want = by_hand(changed, w / 64, b, attrs).astype(np.float32)
            got = call([changed, w / 64, b])[0]
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
            near = np.isfinite(want) & (np.abs(want) < 1e3)
            np.testing.assert_allclose(got[near], want[near], rtol=0, atol=1e-4)


def test_winograd_is_as_exact_as_float32_allows() -> None:
    chance = np.random.default_rng(0)
    x = np.maximum(chance.standard_normal((1, 64, 40, 40)), 0).astype(np.float32)
    w = (chance.standard_normal((48, 64, 3, 3)) / 24).astype(np.float32)
    b = np.zeros(48, np.float32)
    call = registry.prepare("Conv", "", 11, {"pads": [1, 1, 1, 1]}, 1, [1, 2])
    want = by_hand(x, w, b, {"pads": [1, 1, 1, 1]})
    assert np.abs(call([x, w, b])[0] - want).max() < 4e-6 * np.abs(want).max()


def test_winograd_gives_equal_channels_equal_results() -> None:
    chance = np.random.default_rng(0)
    x = chance.standard_normal((1, 32, 37, 43)).astype(np.float32)
    w = np.repeat(chance.standard_normal((1, 32, 3, 3)), 48, axis=0).astype(np.float32)
    call = registry.prepare("Conv", "", 11, {"pads": [1, 1, 1, 1]}, 1, [1])
    y = call([x, w])[0]
    assert (y == y[:, :1]).all()


def test_weights_that_change_are_not_transformed() -> None:
    x_shape, w_shape, attrs = CASES["winograd"]
    win = windows(x_shape[2:], w_shape[2:], **attrs)
    assert convolve.route(win, w_shape[1], w_shape[0], 1, False) is convolve.Route.COLUMNS


def test_what_is_remembered_is_only_of_constants() -> None:
    x_shape, w_shape, attrs = CASES["taps"]
    chance = np.random.default_rng(0)
    x, w = (chance.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    call = registry.prepare("Conv", "", 11, attrs, 1)
    first = call([x, w])[0]
    np.testing.assert_allclose(call([x, 2 * w])[0], 2 * first, rtol=1e-5)


def test_few_outputs_are_summed_tap_by_tap_even_where_weights_are_constant() -> None:
    win = windows((172, 88), (3, 3), pads=(1, 1, 1, 1))
    assert convolve.route(win, 33, 1, 1, True) is convolve.Route.TAPS
    assert convolve.route(win, 33, 24, 1, True) is convolve.Route.WINOGRAD


def test_images_of_other_sizes_are_convolved_with_the_same_weights() -> None:
    attrs = {"group": 6, "pads": [1, 1, 1, 1]}
    chance = np.random.default_rng(0)
    w, b = (chance.standard_normal(s).astype(np.float32) for s in ((6, 1, 3, 3), (6,)))
    call = registry.prepare("Conv", "", 11, attrs, 1, [1, 2])
    for width in (320, 90, 7, 11, 320):
        x = chance.standard_normal((1, 6, 8, width)).astype(np.float32)
        np.testing.assert_allclose(call([x, w, b])[0], by_hand(x, w, b, attrs), atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_order_in_memory_of_the_input_does_not_matter(name: str) -> None:
    x_shape, w_shape, attrs = CASES[name]
    chance = np.random.default_rng(0)
    x, w = (chance.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    b = chance.standard_normal(w_shape[0]).astype(np.float32)
    want = by_hand(x, w, b, attrs)
    channels_last = np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1)
    part_of_channels = np.repeat(x, 2, axis=1)[:, ::2]
    part_of_runs = np.moveaxis(np.repeat(np.moveaxis(x, 1, -1), 2, axis=-1)[..., 1::2], -1, 1)
    for seen in (channels_last, part_of_channels, part_of_runs, x[..., ::-1].copy()[..., ::-1]):
        found = registry.run("Conv", "", 11, attrs, [seen, w, b], 1)[0]
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("size", [0, 1, 7, 1 << 20, 1 << 40])
@pytest.mark.parametrize("most", [1, 3, 1 << 10])
def test_pieces_are_few_however_large_a_result_is(size: int, most: int) -> None:
    """A file may ask for pads of any size: NumPy refuses the memory, if it gets that far."""
    found = convolve_pieces.evenly(size, most)
    assert len(found) <= convolve_pieces.MOST_PIECES
    ends = [cut.stop for cut in found]
    assert [cut.start for cut in found] == [0, *ends[:-1]] if found else size == 0
    assert ends[-1:] == [size] * (size > 0)
