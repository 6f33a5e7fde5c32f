"""Sequences (lists) and optionals (None or a value)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu_fallback.numeric import element_type, positive_axis
from cpu_fallback.registry import Tensor, Value, cpu_op


def _position(position: Tensor | None, length: int, slots: int) -> int:
    """Index into a sequence, negative ones from the end; `slots` are allowed.

    Raises: ValueError if it is out of range.
    """
    if position is None:
        return slots - 1
    index = int(position.reshape(()))
    if not -length <= index < slots:
        raise ValueError(f"position {index} in a sequence of {length}")
    return index + length if index < 0 else index


@cpu_op("SequenceConstruct", since=11)
def sequence_construct(*inputs: Tensor) -> list[Any]:
    """The inputs as a sequence. Source: ONNX SequenceConstruct-11."""
    return list(inputs)


@cpu_op("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int = 1) -> list[Any]:
    """A sequence without elements.

    Raises: ValueError if dtype is no tensor type. Source: ONNX SequenceEmpty-11.
    """
    element_type(dtype)
    return []


@cpu_op("SequenceAt", since=11)
def sequence_at(sequence: list[Any], position: Tensor) -> Value:
    """The element at `position`.

    Raises: ValueError if it is out of range. Source: ONNX SequenceAt-11.
    """
    found: Value = sequence[_position(position, len(sequence), len(sequence))]
    return found


@cpu_op("SequenceErase", since=11)
def sequence_erase(sequence: list[Any], position: Tensor | None = None) -> list[Any]:
    """The sequence without the element at `position` (the last one if omitted).

    Raises: ValueError if it is out of range. Source: ONNX SequenceErase-11.
    """
    if not sequence:
        raise ValueError("SequenceErase of an empty sequence")
    index = _position(position, len(sequence), len(sequence))
    return sequence[:index] + sequence[index + 1 :]


@cpu_op("SequenceInsert", since=11)
def sequence_insert(
    sequence: list[Any], tensor: Tensor, position: Tensor | None = None
) -> list[Any]:
    """The sequence with `tensor` before `position` (at the end if omitted).

    Raises: ValueError if it is out of range. Source: ONNX SequenceInsert-11.
    """
    index = _position(position, len(sequence), len(sequence) + 1)
    return [*sequence[:index], tensor, *sequence[index:]]


@cpu_op("SequenceLength", since=11)
def sequence_length(sequence: list[Any]) -> Tensor:
    """Number of elements, int64 scalar. Source: ONNX SequenceLength-11."""
    return np.array(len(sequence), np.int64)


@cpu_op("ConcatFromSequence", since=11)
def concat_from_sequence(sequence: list[Any], *, axis: int, new_axis: int = 0) -> Tensor:
    """The tensors of a sequence joined along `axis`, stacked along it if new_axis is 1.

    Raises: ValueError for an empty sequence. Source: ONNX ConcatFromSequence-11.
    """
    if not sequence:
        raise ValueError("ConcatFromSequence of an empty sequence")
    return np.stack(sequence, axis=axis) if new_axis else np.concatenate(sequence, axis=axis)


@cpu_op("SplitToSequence", since=11)
def split_to_sequence(
    x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Any]:
    """Pieces of `x` along `axis`: of given sizes, of one size (a shorter last one), or of 1.

    keepdims: without `split`, whether the axis of size 1 stays.

    Raises: ValueError if the sizes do not add up. Source: ONNX SplitToSequence-24.
    """
    where = positive_axis(axis, x.ndim)
    total = x.shape[where]
    if split is None:
        pieces = [np.take(x, [i], axis=where) for i in range(total)]
        return pieces if keepdims else [np.squeeze(piece, axis=where) for piece in pieces]
    if split.ndim == 0:
        size = int(split)
        if size <= 0:
            raise ValueError(f"SplitToSequence into pieces of {size}")
        starts = list(range(0, total, size))
    else:
        if int(split.sum()) != total or np.any(split < 0):
            raise ValueError(f"pieces of {split.tolist()} do not make up {total}")
        starts = (np.cumsum(split) - split).tolist()
    return list(np.split(x, starts, axis=where))[1:]


@cpu_op("Optional", since=15)
def optional(value: Value = None, *, type: object = None) -> Value:
    """An optional that holds `value`, or nothing. Source: ONNX Optional-28."""
    return value


@cpu_op("OptionalHasElement", since=15)
def optional_has_element(value: Value = None) -> Tensor:
    """Whether the optional holds something; bool scalar. Source: ONNX OptionalHasElement-28."""
    return np.array(value is not None)


@cpu_op("OptionalGetElement", since=15)
def optional_get_element(value: Value) -> Value:
    """What the optional holds.

    Raises: ValueError if it is empty. Source: ONNX OptionalGetElement-28.
    """
    if value is None:
        raise ValueError("OptionalGetElement of an empty optional")
    return value
