"""Conv and ConvTranspose in NumPy: matrix products through BLAS, taps where there is no sum."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from cpu_fallback.numeric import wide
from cpu_fallback.planes import Layout, layout
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op
from cpu_fallback.windows import SAME, WindowAttributes, Windows, same_pads, windows

COLUMN_NBYTES = 16 << 20
PIECE_NBYTES = 1 << 20
MIN_TAP_CHANNELS = 8
"""From so many channels on, a product for each tap beats one product of copied taps."""
_FEW_BYTES = 3 << 19
MAX_PHASES = 16
MAX_TAPS = 128


@cpu_op("Conv", since=1)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    memo: Memo = NO_MEMO,
    **window: Unpack[WindowAttributes],
) -> Tensor:
    """Convolution of `x` [N, C, spatial] with `w` [M, C/group, kernel] plus `b` [M].

    float16 and bfloat16 are computed in float32 and rounded at the end.
    Returns: [N, M, out], dtype of `x`. Raises: ValueError if shapes do not fit.
    Source: ONNX Conv-22.
    """
    _check(x, w, group, kernel_shape, w.shape[1] * group)
    win = windows(x.shape[2:], w.shape[2:], **window)
    if w.shape[0] % group:
        raise ValueError(f"{w.shape[0]} output channels do not split into {group} groups")
    dtype = wide(x.dtype)
    xw, ww = x.astype(dtype, copy=False), w.astype(dtype, copy=False)
    bias = None
    if b is not None:
        bias = b.astype(dtype, copy=False).reshape(group, -1, *(1,) * (x.ndim - 2))
    y = _convolve(xw, ww, bias, win, group, memo)
    return y.reshape(x.shape[0], w.shape[0], *win.out).astype(x.dtype, copy=False)


def _check(
    x: Tensor, w: Tensor, group: int, kernel_shape: Sequence[int] | None, channels: int
) -> None:
    if x.ndim < 3 or x.ndim != w.ndim:
        raise ValueError(f"x {x.shape} and w {w.shape} need the same rank, at least 3")
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(f"kernel_shape {tuple(kernel_shape)} differs from w {w.shape}")
    if group < 1 or channels != x.shape[1] or channels % group:
        raise ValueError(f"x {x.shape} and w {w.shape} do not fit {group} groups")


class Route(enum.Enum):
    """How a convolution is computed."""

    TAPS = "a product for each tap, on shifted views"
    LINES = "one channel a group: a product for each line of the kernel"
    COLUMNS = "one product of all taps, copied side by side"
    POINTWISE = "one product of the pixels"
    EXACT = "one product of columns of just the taps of every window"


def route(win: Windows, channels: int, each: int, group: int, itemsize: int) -> Route:
    """The way that copies least, for `channels` in and `each` out in a group."""
    taps = math.prod(win.kernel)
    if channels and taps > 1 and _is_flat(win, channels, each, itemsize):
        if channels >= MIN_TAP_CHANNELS and each <= channels:
            return Route.TAPS
        if group > 1 and channels == each == 1 and len(win.out) > 1:
            return Route.LINES
        return Route.COLUMNS
    return Route.POINTWISE if channels and taps == 1 else Route.EXACT


def _convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, win: Windows, group: int, memo: Memo
) -> Tensor:
    """[N, group, M/group, out] by the way that copies least."""
    channels, each, taps = w.shape[1], w.shape[0] // group, math.prod(win.kernel)
    y = np.empty((x.shape[0], group, each, *win.out), x.dtype)
    if not y.size:
        return y
    way = route(win, channels, each, group, x.itemsize)
    if way in (Route.TAPS, Route.LINES, Route.COLUMNS):
        # without groups the images of a batch take their place: they share the weights
        batch, parts = (x.shape[0], group) if group > 1 else (1, x.shape[0])
        grouped = x.reshape(batch, parts, channels, *win.size)
        target = y.reshape(batch, parts, each, *win.out)
        added = None if bias is None else np.broadcast_to(bias, (parts, *bias.shape[1:]))
        if way is Route.TAPS:
            weights = memo.of(1, "taps", lambda: _tap_first(w, group))
            weights = np.broadcast_to(weights, (taps, parts, each, channels))
            _by_taps(grouped, weights, added, layout(win), target)
        elif way is Route.LINES:
            lines = w.reshape(group, 1, -1, win.kernel[-1])
            _by_lines(grouped, lines, added, layout(win), target)
        else:
            matrix = np.broadcast_to(w.reshape(group, each, -1), (parts, each, channels * taps))
            _by_columns(grouped, matrix, added, layout(win), target)
        return y
    if way is Route.POINTWISE:
        _pointwise(x, w, win, y)
    else:
        _exact(x, w.reshape(group, each, -1), win, y)
    if bias is not None:
        y += bias
    return y


def _tap_first(w: Tensor, group: int) -> Tensor:
    """[taps, group, M/group, C/group]."""
    shaped = w.reshape(group, w.shape[0] // group, w.shape[1], -1)
    return np.ascontiguousarray(shaped.transpose(3, 0, 1, 2))


def _is_flat(win: Windows, channels: int, each: int, itemsize: int) -> bool:
    """Whether it pays to compute on rows with their padding, as one run of memory."""
    phases = math.prod(min(s, k) for s, k in zip(win.strides, win.kernel, strict=True))
    if phases > MAX_PHASES or math.prod(win.kernel) > MAX_TAPS:
        return False
    if channels >= MIN_TAP_CHANNELS:
        nbytes = channels * math.prod(win.kernel) * math.prod(win.out) * itemsize
        if phases > 1 or (2 * each > channels and nbytes <= _FEW_BYTES):
            return False
    waste = math.prod(
        (o + (k - 1) * d // s) / o
        for o, k, d, s in zip(
            win.out[1:], win.kernel[1:], win.dilations[1:], win.strides[1:], strict=True
        )
    )
    return waste <= (1.2 if channels * each > 1024 else 1.6)


def _pointwise(x: Tensor, w: Tensor, win: Windows, y: Tensor) -> None:
    pixels = win.padded(x, 0)[win.tap((0,) * len(win.kernel))]
    n, group, each = y.shape[:3]
    flat = pixels.reshape(n, group, w.shape[1], math.prod(win.out))
    np.matmul(w.reshape(group, each, -1), flat, out=y.reshape(n, group, each, -1))


def _exact(x: Tensor, matrix: Tensor, win: Windows, y: Tensor) -> None:
    """Columns of just the taps of every window, some rows at a time."""
    group = y.shape[1]
    columns = _columns(win.padded(x, 0), win, group)
    row_nbytes = x.itemsize * x.shape[1] * math.prod(win.kernel) * math.prod(win.out[1:])
    rows = max(1, COLUMN_NBYTES // max(1, row_nbytes))
    first = -len(win.out)
    for image in range(x.shape[0]):
        for row in range(0, win.out[0], rows):
            at = (slice(None),) * (columns.ndim - 1 + first) + (slice(row, row + rows),)
            part = columns[image][at]
            flat = part.reshape(group, matrix.shape[2], math.prod(part.shape[first:]))
            y[image, :, :, row : row + rows] = np.matmul(matrix, flat).reshape(
                group, matrix.shape[1], *part.shape[first:]
            )


def _columns(padded: Tensor, win: Windows, group: int) -> Tensor:
    """View [N, group, C/group, kernel, out] of the taps of every window."""
    n, c = padded.shape[:2]
    steps = padded.strides[2:]
    shape = (n, group, c // group, *win.kernel, *win.out)
    strides = (
        padded.strides[0],
        padded.strides[1] * (c // group),
        padded.strides[1],
        *(d * s for d, s in zip(win.dilations, steps, strict=True)),
        *(d * s for d, s in zip(win.strides, steps, strict=True)),
    )
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)


def _pieces(groups: int, rows: int, row_nbytes: int) -> Iterator[tuple[slice, slice]]:
    """Groups and rows to compute together: what they need (`row_nbytes` each) fits the cache."""
    if rows * row_nbytes <= PIECE_NBYTES:
        step = max(1, PIECE_NBYTES // max(1, rows * row_nbytes))
        for start in range(0, groups, step):
            yield slice(start, min(start + step, groups)), slice(0, rows)
        return
    step = max(1, PIECE_NBYTES // row_nbytes)
    for group in range(groups):
        for start in range(0, rows, step):
            yield slice(group, group + 1), slice(start, min(start + step, rows))


class _Scratch:
    """Memory that is used for one array after the other."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._memory = np.empty(0, dtype)

    def array(self, *shape: int) -> Tensor:
        """An array of any content; it takes the place of the one before."""
        size = math.prod(shape)
        if self._memory.size < size:
            self._memory = np.empty(size, self._memory.dtype)
        return self._memory[:size].reshape(shape)


def _planes(
    x: Tensor, image: int, at: slice, rows: slice, lay: Layout, scratch: _Scratch
) -> Tensor:
    """[groups, C/group, phases, positions] of some rows of windows. x: [N, group, C, spatial]."""
    if lay.is_plain(x):
        flat = x[image, at].reshape(at.stop - at.start, x.shape[2], 1, -1)
        return flat[..., rows.start * lay.row :]
    count = rows.stop - rows.start + lay.halo
    shape = (at.stop - at.start, x.shape[2], len(lay.phases), count)
    target = scratch.array(*shape, lay.row)
    lay.fill(target, x[image, at], rows.start)
    return target.reshape(*shape[:3], count * lay.row)


def _store(y: Tensor, total: Tensor, bias: Tensor | None, lay: Layout) -> None:
    """Drops the positions between rows of `total` [group, M, positions]; adds the bias."""
    shaped = total.reshape(*y.shape[:3], *lay.size[1:])
    inside: list[Any] = [..., *(slice(0, o) for o in lay.win.out[1:])]
    if bias is None:
        y[...] = shaped[tuple(inside)]
    else:
        np.add(shaped[tuple(inside)], bias, out=y)


def _by_taps(x: Tensor, weights: Tensor, bias: Tensor | None, lay: Layout, y: Tensor) -> None:
    """A product for each tap, on shifted views. weights: [taps, group, M/group, C/group]."""
    n, group, each = y.shape[:3]
    sums, products, space = _Scratch(y.dtype), _Scratch(y.dtype), _Scratch(y.dtype)
    row_nbytes = (2 * each + x.shape[2] * len(lay.phases)) * lay.row * y.itemsize
    for image in range(n):
        for at, rows in _pieces(group, lay.win.out[0], row_nbytes):
            data = _planes(x, image, at, rows, lay, space)
            count = lay.count(rows.stop - rows.start)
            shape = (at.stop - at.start, each, (rows.stop - rows.start) * lay.row)
            whole, other = sums.array(*shape), products.array(*shape)
            total, product = whole[..., :count], other[..., :count]
            for index, (phase, shift) in enumerate(lay.taps):
                pixels = data[:, :, phase, shift : shift + count]
                np.matmul(weights[index, at], pixels, out=product if index else total)
                if index:
                    np.add(total, product, out=total)
            _store(y[image, at, :, rows], whole, None if bias is None else bias[at], lay)


def _by_columns(x: Tensor, matrix: Tensor, bias: Tensor | None, lay: Layout, y: Tensor) -> None:
    """One product of all taps, copied side by side. matrix: [group, M/group, C/group * taps]."""
    n, group, each = y.shape[:3]
    channels, taps = x.shape[2], len(lay.taps)
    sums, copies, space = _Scratch(y.dtype), _Scratch(y.dtype), _Scratch(y.dtype)
    row_nbytes = (channels * (taps + len(lay.phases)) + each) * lay.row * y.itemsize
    for image in range(n):
        for at, rows in _pieces(group, lay.win.out[0], row_nbytes):
            data = _planes(x, image, at, rows, lay, space)
            count, groups = lay.count(rows.stop - rows.start), at.stop - at.start
            columns = copies.array(groups, channels, taps, count)
            for index, (phase, shift) in enumerate(lay.taps):
                columns[:, :, index] = data[:, :, phase, shift : shift + count]
            whole = sums.array(groups, each, (rows.stop - rows.start) * lay.row)
            flat = columns.reshape(groups, channels * taps, count)
            np.matmul(matrix[at], flat, out=whole[..., :count])
            _store(y[image, at, :, rows], whole, None if bias is None else bias[at], lay)


def _by_lines(x: Tensor, lines: Tensor, bias: Tensor | None, lay: Layout, y: Tensor) -> None:
    """One channel a group: a product for each line of the kernel, whose taps are side by side.

    lines: [group, 1, lines, taps of a line].
    """
    n, group = y.shape[:2]
    taps = lines.shape[-1]
    sums, products = _Scratch(y.dtype), _Scratch(y.dtype)
    copies, space = _Scratch(y.dtype), _Scratch(y.dtype)
    row_nbytes = (taps * len(lay.lines) + len(lay.phases) + 2) * lay.row * y.itemsize
    for image in range(n):
        for at, rows in _pieces(group, lay.win.out[0], row_nbytes):
            data = _planes(x, image, at, rows, lay, space)[:, 0]
            count, groups = lay.count(rows.stop - rows.start), at.stop - at.start
            span = count + max(shift for _, shift in lay.leads)
            columns = copies.array(len(lay.lines), groups, taps, span)
            for index, line in enumerate(lay.lines):
                for tap, (phase, shift) in enumerate(line):
                    columns[index, :, tap] = data[:, phase, shift : shift + span]
            shape = (groups, 1, (rows.stop - rows.start) * lay.row)
            whole, other = sums.array(*shape), products.array(*shape)
            total, product = whole[..., :count], other[..., :count]
            for index, (line_index, shift) in enumerate(lay.leads):
                pixels = columns[line_index, :, :, shift : shift + count]
                np.matmul(lines[at, :, index], pixels, out=product if index else total)
                if index:
                    np.add(total, product, out=total)
            _store(y[image, at, :, rows], whole, None if bias is None else bias[at], lay)


@cpu_op("ConvTranspose", since=1)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Transposed convolution of `x` [N, C, spatial] with `w` [C, M/group, kernel] plus `b` [M].

    float16 and bfloat16 are computed in float32 and rounded at the end.
    Returns: [N, M, out], dtype of `x`. Raises: ValueError if shapes do not fit.
    Source: ONNX ConvTranspose-22.
    """
    _check(x, w, group, kernel_shape, w.shape[0])
    rank = x.ndim - 2
    kernel = w.shape[2:]
    steps = tuple(strides or (1,) * rank)
    spread = tuple(dilations or (1,) * rank)
    extra = tuple(output_padding or (0,) * rank)
    size = x.shape[2:]
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1 if n else 0
        for n, s, k, d in zip(size, steps, kernel, spread, strict=True)
    )
    begin, out = _transposed_sizes(full, size, steps, extra, auto_pad, pads, output_shape)
    dtype = wide(x.dtype)
    whole = _scatter(
        x.astype(dtype, copy=False), w.astype(dtype, copy=False), group, steps, spread, full
    )
    y = np.zeros((x.shape[0], w.shape[1] * group, *out), dtype)
    source: list[Any] = [...]
    target: list[Any] = [...]
    for offset, length, available in zip(begin, out, full, strict=True):
        lo, hi = max(0, offset), max(0, offset, min(available, offset + length))
        source.append(slice(lo, hi))
        target.append(slice(lo - offset, hi - offset))
    y[tuple(target)] = whole.reshape(*y.shape[:2], *full)[tuple(source)]
    if b is not None:
        y += b.astype(dtype).reshape(-1, *(1,) * rank)
    return y.astype(x.dtype, copy=False)


def _transposed_sizes(
    full: Sequence[int],
    size: Sequence[int],
    strides: Sequence[int],
    output_padding: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """Elements cut off in front, and output sizes, of each axis."""
    rank = len(size)
    pads = list(pads or (0,) * (2 * rank))
    if auto_pad not in SAME and auto_pad not in ("VALID", "NOTSET", ""):
        raise ValueError(f"auto_pad {auto_pad!r} is unknown")
    wanted = None
    if output_shape:
        wanted = list(output_shape)[-rank:]
    elif auto_pad in SAME:
        wanted = [n * s for n, s in zip(size, strides, strict=True)]
    begin, out = [], []
    for axis in range(rank):
        natural = full[axis] + output_padding[axis]
        if wanted is not None:
            out.append(wanted[axis])
            begin.append(same_pads(max(natural - wanted[axis], 0), auto_pad)[0])
        else:
            before, after = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[rank + axis])
            out.append(natural - before - after)
            begin.append(before)
        if out[axis] < 0:
            raise ValueError(f"pads {pads} exceed the {natural} elements of axis {axis}")
    return begin, out


def _scatter(
    x: Tensor,
    w: Tensor,
    group: int,
    strides: Sequence[int],
    dilations: Sequence[int],
    full: Sequence[int],
) -> Tensor:
    """[N, group, M/group, full]: every product added where its tap falls, without pads."""
    n, c, *size = x.shape
    kernel = w.shape[2:]
    matrix = w.reshape(group, c // group, -1).transpose(0, 2, 1)
    products = np.matmul(matrix, x.reshape(n, group, c // group, math.prod(size)))
    products = products.reshape(n, group, w.shape[1], *kernel, *size)
    y = np.zeros((n, group, w.shape[1], *full), x.dtype)
    for tap in itertools.product(*map(range, kernel)):
        at: list[Any] = [
            slice(t * d, t * d + (m - 1) * s + 1, s) if m else slice(0, 0)
            for t, d, m, s in zip(tap, dilations, size, strides, strict=True)
        ]
        y[(..., *at)] += products[(slice(None),) * 3 + tap]
    return y
