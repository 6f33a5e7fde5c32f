"""LSTM, GRU and RNN: one matrix product for all inputs, then a loop over time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, Unpack

import numpy as np

from cpu_fallback.numeric import wide
from cpu_fallback.products import product
from cpu_fallback.registry import NO_MEMO, Memo, Tensor, cpu_op

Activation = Callable[[Tensor], Tensor]
Recurrence = Callable[[Tensor], Tensor]


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), same shape and dtype."""
    y = np.asarray(np.negative(x))
    np.exp(y, out=y)
    np.add(y, 1, out=y)
    return np.asarray(np.divide(1, y, out=y))


_PLAIN: dict[str, Activation] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(x, 0),
}
_SCALED: dict[str, tuple[Callable[[Tensor, float, float], Tensor], float, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, _: np.where(x >= 0, x, a * x), 0.01, None),
    "thresholdedrelu": (lambda x, a, _: np.where(x > a, x, 0), 1.0, None),
    "elu": (lambda x, a, _: np.where(x >= 0, x, a * np.expm1(x)), 1.0, None),
}


def make_activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """Functions for ONNX activation names; alphas and betas go to those that take them, in order.

    Raises: ValueError for a name that ONNX does not list.
    """
    alpha_left, beta_left = list(alphas or ()), list(betas or ())
    functions: list[Activation] = []
    for name in names:
        key = name.lower()
        if key in _PLAIN:
            functions.append(_PLAIN[key])
            continue
        if key not in _SCALED:
            raise ValueError(f"unknown activation {name!r} in a recurrent operator")
        function, alpha, beta = _SCALED[key]
        a = alpha_left.pop(0) if alpha_left else alpha
        b = 0.0 if beta is None else beta_left.pop(0) if beta_left else beta
        functions.append(lambda x, function=function, a=a, b=b: function(x, a, b))  # type: ignore[misc]
    return functions


@dataclass(frozen=True)
class _Sequence:
    """Inputs every recurrent operator shares, time first and in the type to compute in.

    x: [seq, batch, input]; mask: [seq, batch, 1] bool or None if every step is valid;
    directions: "forward" / "reverse" for each direction.
    """

    x: Tensor
    mask: Tensor | None
    directions: tuple[str, ...]
    layout: int
    dtype: np.dtype[np.generic]

    def steps(self, direction: int) -> range:
        length = self.x.shape[0]
        backwards = self.directions[direction] == "reverse"
        return range(length - 1, -1, -1) if backwards else range(length)

    def state(self, given: Tensor | None, direction: int, hidden: int) -> Tensor:
        """[batch, hidden]: the initial state, zeros if omitted."""
        if given is None:
            return np.zeros((self.x.shape[1], hidden), self.x.dtype)
        part = given[:, direction] if self.layout else given[direction]
        return np.asarray(part, dtype=self.x.dtype)


def _prepare(x: Tensor, sequence_lens: Tensor | None, direction: str, layout: int) -> _Sequence:
    directions = ("forward", "reverse") if direction == "bidirectional" else (direction,)
    if directions[0] not in ("forward", "reverse"):
        raise ValueError(f"direction must be forward, reverse or bidirectional, not {direction!r}")
    if x.ndim != 3:
        raise ValueError(f"X of a recurrent operator must have rank 3, not shape {x.shape}")
    first = np.swapaxes(x, 0, 1) if layout else x
    values = np.ascontiguousarray(first, dtype=wide(x.dtype))
    mask = None
    steps = values.shape[0]
    if sequence_lens is not None and np.any((sequence_lens < 0) | (sequence_lens > steps)):
        raise ValueError(f"sequence_lens {sequence_lens.tolist()} for {steps} steps")
    if sequence_lens is not None and np.any(sequence_lens < steps):
        mask = (np.arange(values.shape[0])[:, None] < sequence_lens[None, :])[..., None]
    return _Sequence(values, mask, directions, layout, x.dtype)


def _select(mask: Tensor | None, t: int, new: Tensor, old: Tensor) -> Tensor:
    return new if mask is None else np.where(mask[t], new, old)


def _stacked(parts: Sequence[Tensor], axis: int) -> Tensor:
    """The parts along a new axis, the first or the second; a view of a single one."""
    if len(parts) == 1:
        return parts[0][:, None] if axis else parts[0][None]
    return np.stack(parts, axis=axis)


def _finish(data: _Sequence, per_direction: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Y and the final states from (outputs [seq, batch, hidden], states [batch, hidden])."""
    y = _stacked([result[0] for result in per_direction], 1)
    if data.mask is not None:
        y = np.where(data.mask[:, None], y, 0)
    states = [
        _stacked(parts, 1 if data.layout else 0)
        for parts in zip(*(result[1:] for result in per_direction), strict=True)
    ]
    if data.layout:
        y = np.transpose(y, (2, 0, 1, 3))
    return tuple(np.ascontiguousarray(part, dtype=data.dtype) for part in (y, *states))


def _clipped(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None or clip <= 0 else np.clip(x, -clip, clip)


def _names(given: Sequence[str] | None, default: tuple[str, ...], count: int) -> Sequence[str]:
    names = list(given) if given else list(default) * count
    if len(names) != len(default) * count:
        raise ValueError(f"{len(default) * count} activations are needed, {len(names)} were given")
    return names


def _bias(b: Tensor | None, direction: int, width: int, dtype: np.dtype[np.generic]) -> Tensor:
    """[2, width]: input and recurrence bias, zeros if omitted."""
    if b is None:
        return np.zeros((2, width), dtype)
    return np.asarray(b[direction].reshape(2, width), dtype=dtype)


def _gate_bias(b: Tensor, d: int, width: int, dtype: np.dtype[np.generic]) -> Tensor:
    """[width]: both biases of an LSTM, which only counts as their sum."""
    return np.asarray(_bias(b, d, width, dtype).sum(axis=0))


def project(x: Tensor, w: Tensor) -> Tensor:
    """[seq, batch, input] by [gates, input] -> [seq, batch, gates], as one product."""
    flat = product(x.reshape(len(x) * x.shape[1], x.shape[2]), w.T.astype(x.dtype, copy=False))
    return flat.reshape(x.shape[0], x.shape[1], w.shape[0])


def recurrent_weights(r: Tensor, d: int, dtype: np.dtype[np.generic], memo: Memo) -> Tensor:
    """[hidden, gates] of direction `d` of `r`, the node's third input."""
    return memo.of(2, d, lambda: np.ascontiguousarray(r[d].T, dtype=dtype))


@dataclass(frozen=True)
class LstmCell:
    """One direction of an LSTM. peepholes: [3, hidden] in the order i, o, f, or None."""

    functions: Sequence[Activation]
    peepholes: Tensor | None
    clip: float | None
    input_forget: bool

    def step(self, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """gates: [batch, 4 * hidden] in the order i, o, f, c; c: [batch, hidden] -> (h, c)."""
        f, g, h = self.functions
        hidden = c.shape[1]
        if self.peepholes is None:
            iof = f(_clipped(gates[:, : 3 * hidden], self.clip))
            i_gate, o_gate, f_gate = iof[:, :hidden], iof[:, hidden:-hidden], iof[:, -hidden:]
        else:
            i_gate = f(_clipped(gates[:, :hidden] + self.peepholes[0] * c, self.clip))
            f_in = gates[:, 2 * hidden : 3 * hidden] + self.peepholes[2] * c
            f_gate = f(_clipped(f_in, self.clip))
        if self.input_forget:
            f_gate = 1 - i_gate
        c_new = f_gate * c
        c_new += i_gate * g(_clipped(gates[:, 3 * hidden :], self.clip))
        if self.peepholes is not None:
            o_in = gates[:, hidden : 2 * hidden] + self.peepholes[1] * c_new
            o_gate = f(_clipped(o_in, self.clip))
        return o_gate * h(c_new), c_new


def lstm_direction(
    data: _Sequence,
    direction: int,
    gates_x: Tensor,
    recurrence: Recurrence,
    cell: LstmCell,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [seq, batch, hidden] and last h and c. gates_x: [seq, batch, 4 * hidden]."""
    outputs = np.empty((*gates_x.shape[:2], h.shape[1]), h.dtype)
    for t in data.steps(direction):
        gates = recurrence(h)
        gates += gates_x[t]
        h_new, c_new = cell.step(gates, c)
        h, c = _select(data.mask, t, h_new, h), _select(data.mask, t, c_new, c)
        outputs[t] = h
    return outputs, h, c


class LstmAttributes(TypedDict, total=False):
    """Attributes of the LSTMs of ONNX and com.microsoft; each has the default of `run_lstm`."""

    activation_alpha: Sequence[float] | None
    activation_beta: Sequence[float] | None
    activations: Sequence[str] | None
    clip: float | None
    direction: str
    input_forget: int


def run_lstm(
    x: Tensor,
    products: Callable[[Tensor, int], tuple[Tensor, Recurrence]],
    hidden: int,
    optional: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
    memo: Memo = NO_MEMO,
) -> tuple[Tensor, ...]:
    """LSTM over given matrix products.

    Args:
        products: (x [seq, batch, input], direction) -> (x by W^T, function h -> h by R^T), both
            new arrays.
        optional: B, sequence_lens, initial_h, initial_c, P, None where omitted.
        memo: of a node whose fourth input is B.
    """
    b, sequence_lens, initial_h, initial_c, p = optional
    data = _prepare(x, sequence_lens, direction, layout)
    names = _names(activations, ("Sigmoid", "Tanh", "Tanh"), len(data.directions))
    functions = make_activations(names, activation_alpha, activation_beta)
    results: list[tuple[Tensor, ...]] = []
    for d in range(len(data.directions)):
        gates_x, recurrence = products(data.x, d)
        peepholes = None if p is None else p[d].reshape(3, hidden).astype(data.x.dtype)
        cell = LstmCell(functions[3 * d : 3 * d + 3], peepholes, clip, bool(input_forget))
        h, c = data.state(initial_h, d, hidden), data.state(initial_c, d, hidden)
        if b is not None:
            gates_x += memo.of(3, ("bias", d), partial(_gate_bias, b, d, 4 * hidden, data.x.dtype))
        results.append(lstm_direction(data, d, gates_x, recurrence, cell, h, c))
    return _finish(data, results)


@cpu_op("LSTM", since=7)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    hidden_size: int | None = None,
    layout: int = 0,
    memo: Memo = NO_MEMO,
    **attributes: Unpack[LstmAttributes],
) -> tuple[Tensor, ...]:
    """Y, Y_h, Y_c of an LSTM; `x`: [seq, batch, input], or [batch, seq, input] for layout 1.

    Y: [seq, directions, batch, hidden], Y_h and Y_c: [directions, batch, hidden] (layout 1: batch
    first). Outputs after the end of a sequence are 0. Float types; float16 is computed in float32.

    Raises: ValueError for an unknown direction or activation. Source: ONNX LSTM-22.
    """

    def products(values: Tensor, d: int) -> tuple[Tensor, Recurrence]:
        recurrent = recurrent_weights(r, d, values.dtype, memo)
        return project(values, w[d]), lambda h: h @ recurrent

    hidden = r.shape[2] if hidden_size is None else hidden_size
    return run_lstm(
        x,
        products,
        hidden,
        (b, sequence_lens, initial_h, initial_c, p),
        layout=layout,
        memo=memo,
        **attributes,
    )


@cpu_op("GRU", since=7)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    memo: Memo = NO_MEMO,
) -> tuple[Tensor, ...]:
    """Y, Y_h of a GRU; shapes and types as of `lstm`, gates in the order z, r, h.

    Raises: ValueError for an unknown direction or activation. Source: ONNX GRU-22.
    """
    data = _prepare(x, sequence_lens, direction, layout)
    hidden = r.shape[2] if hidden_size is None else hidden_size
    names = _names(activations, ("Sigmoid", "Tanh"), len(data.directions))
    functions = make_activations(names, activation_alpha, activation_beta)
    results: list[tuple[Tensor, ...]] = []
    for d in range(len(data.directions)):
        f, g = functions[2 * d : 2 * d + 2]
        bias = _bias(b, d, 3 * hidden, data.x.dtype)
        gates_x = project(data.x, w[d]) + bias[0]
        gates_x[..., : 2 * hidden] += bias[1, : 2 * hidden]
        bias_h = bias[1, 2 * hidden :]
        recurrent = recurrent_weights(r, d, data.x.dtype, memo)
        r_zr, r_h = recurrent[:, : 2 * hidden], recurrent[:, 2 * hidden :]
        h = data.state(initial_h, d, hidden)
        outputs = np.empty((*gates_x.shape[:2], hidden), data.x.dtype)
        for t in data.steps(d):
            zr = f(_clipped(gates_x[t, :, : 2 * hidden] + h @ r_zr, clip))
            z, reset = zr[:, :hidden], zr[:, hidden:]
            hidden_part = (
                reset * (h @ r_h + bias_h) if linear_before_reset else ((reset * h) @ r_h + bias_h)
            )
            candidate = g(_clipped(gates_x[t, :, 2 * hidden :] + hidden_part, clip))
            h = _select(data.mask, t, (1 - z) * candidate + z * h, h)
            outputs[t] = h
        results.append((outputs, h))
    return _finish(data, results)


@cpu_op("RNN", since=7)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    memo: Memo = NO_MEMO,
) -> tuple[Tensor, ...]:
    """Y, Y_h of a simple RNN; shapes and types as of `lstm`.

    Raises: ValueError for an unknown direction or activation. Source: ONNX RNN-22.
    """
    data = _prepare(x, sequence_lens, direction, layout)
    hidden = r.shape[2] if hidden_size is None else hidden_size
    names = list(activations) if activations else ["Tanh"] * len(data.directions)
    functions = make_activations(names[: len(data.directions)], activation_alpha, activation_beta)
    results: list[tuple[Tensor, ...]] = []
    for d in range(len(data.directions)):
        bias = _bias(b, d, hidden, data.x.dtype).sum(axis=0)
        gates_x = project(data.x, w[d]) + bias
        recurrent = recurrent_weights(r, d, data.x.dtype, memo)
        h = data.state(initial_h, d, hidden)
        outputs = np.empty(gates_x.shape, data.x.dtype)
        for t in data.steps(d):
            new = functions[d](_clipped(gates_x[t] + h @ recurrent, clip))
            h = _select(data.mask, t, new, h)
            outputs[t] = h
        results.append((outputs, h))
    return _finish(data, results)
