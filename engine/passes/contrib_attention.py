"""MultiHeadAttention and Attention of com.microsoft as that of ai.onnx, for `lower_contrib`."""

from __future__ import annotations

import numpy as np

from engine.dtypes import INT32
from engine.passes.build import Builder
from engine.passes.split_cache import join_heads, split_heads
from engine.records import dataclass

LAST = (1 << 31) - 1
_UNKNOWN = 8
"""Inputs of MultiHeadAttention from here on say how a cache is shared."""


def multi_head_attention(b: Builder) -> str:
    """Adds the nodes, or says why not."""
    if b.wanted(3) or any(b.has(i) for i in range(_UNKNOWN, len(b.node.inputs))):
        return "it returns its scores, or shares its cache"
    q, k, v = _unpacked(b)
    if not k or not v:
        return "it has neither a key nor a packed one"
    split_keys = b.has(1) and len(b.shape(1)) == 4
    if b.has(3):
        width, key_width = _width(b, 0), 0 if split_keys else _width(b, 1 if b.has(1) else 0)
        if width is None or key_width is None:
            return "the parts of its bias cannot be told"
        q = _with_bias(b, q, 0, width)
        if not split_keys:
            k = _with_bias(b, k, width, width + key_width)
            v = _with_bias(b, v, width + key_width, LAST)
    same = not b.has(1) or b.shape(1)[2 if split_keys else 1] == b.shape(0)[1]
    cache = _Cache((b.node.input(6), b.node.input(7)), (b.output(1), b.output(2)))
    return _attend(b, (q, k, v), split_keys, 4, same, cache)


def attention(b: Builder) -> str:
    """Adds the nodes, or says why not."""
    if any(b.has(i) for i in range(6, len(b.node.inputs))) or b.attr("do_rotary", 0):
        return "it rotates, or shares its cache"
    width = b.shape(1)[1]
    sizes = b.attr("qkv_hidden_sizes") or []
    if not sizes and not isinstance(width, int):
        return "the widths of its parts are unknown"
    parts = [int(s) for s in sizes] or [int(width) // 3] * 3  # type: ignore[arg-type]
    joined = b.op("MatMul", *b.node.inputs[:2])
    if b.has(2):
        joined = b.op("Add", joined, b.node.inputs[2])
    if b.wanted(1) and parts[1] != parts[2]:
        return "keys and values of its cache differ in size"
    names = b.names(3, "Split")
    b.many("Split", (joined, b.int_constant(*parts)), names, axis=-1)
    old, new = _one_cache(b)
    reason = _attend(b, (names[0], names[1], names[2]), False, 3, True, _Cache(old, new))
    if new[0] and not reason:
        both = (b.op("Unsqueeze", name, b.int_constant(0)) for name in new)
        b.op("Concat", *both, output=b.output(1), axis=0)
    return reason


def _one_cache(b: Builder) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names of the parts of a cache that has keys and values in one, [2, batch, ...]: old, new."""
    old = new = ("", "")
    if b.has(4):
        places = (b.constant(np.array(n, np.int64)) for n in (0, 1))
        first, second = (b.op("Gather", b.node.inputs[4], place, axis=0) for place in places)
        old = first, second
    if b.wanted(1):
        first, second = b.names(2, "present")
        new = first, second
    return old, new


def _width(b: Builder, index: int) -> int | None:
    """Columns of queries or keys, packed or not."""
    shape = b.shape(index)
    width = shape[2] * shape[4] if len(shape) == 5 else shape[-1]
    return width if isinstance(width, int) else None


def _unpacked(b: Builder) -> tuple[str, str, str]:
    """Queries, keys and values; each [batch, length, heads * size] where they came packed."""
    q, k, v = (b.node.input(i) for i in range(3))
    if len(b.shape(0)) == 5:
        return _part(b, q, 0), _part(b, q, 1), _part(b, q, 2)
    if k and len(b.shape(1)) == 5:
        return q, _part(b, k, 0), _part(b, k, 1)
    return q, k, v


def _part(b: Builder, x: str, index: int) -> str:
    """Part `index` of [batch, length, heads, parts, size]."""
    part = b.op("Gather", x, b.constant(np.array(index, np.int64)), axis=3)
    return b.op("Reshape", part, b.int_constant(0, 0, -1))


def _with_bias(b: Builder, x: str, start: int, end: int) -> str:
    part = b.op(
        "Slice", b.node.inputs[3], b.int_constant(start), b.int_constant(end), b.int_constant(0)
    )
    return b.op("Add", x, part)


@dataclass(frozen=True)
class _Cache:
    """Names of keys and values: of the past, and of both together; "" for none."""

    past: tuple[str, str]
    present: tuple[str, str]


def _attend(
    b: Builder,
    operands: tuple[str, str, str],
    split_keys: bool,
    mask_index: int,
    same_length: bool,
    cache: _Cache,
) -> str:
    """Attention of queries to keys, which are split into heads already if `split_keys`."""
    q, k, v = operands
    heads, mask = int(b.attr("num_heads")), b.node.input(mask_index)
    attrs: dict[str, int | float | None] = {
        "is_causal": None,
        "scale": float(b.attr("scale", 0.0)) or None,
    }
    if b.attr("unidirectional", 0):
        if not same_length:
            return "its queries are not as many as its keys, and count from the end"
        attrs["is_causal"] = 1
    if mask and len(b.shape(mask_index)) not in (1, 2, 3):
        return f"its mask has rank {len(b.shape(mask_index))}"
    if mask and len(b.shape(mask_index)) == 1:
        if b.shape(mask_index)[0] != b.shape(0)[0]:
            return "its mask is not as long as the batch"
        mask = _counted(b, mask, k, split_keys, cache.past[0])
    bias = _additive(b, mask, mask_index) if mask else ""
    other = b.node.input(5)
    if other and bias:
        bias = b.op("Add", bias, other)
    total = bias or other
    outputs: tuple[str, ...] = (b.output(0), *cache.present)
    if not split_keys:
        attrs |= {"q_num_heads": heads, "kv_num_heads": heads}
    else:
        q = split_heads(b, q, heads)
        outputs = (b.names(1, "Attention")[0], *outputs[1:])
    while not outputs[-1]:
        outputs = outputs[:-1]
    b.many("Attention", (q, k, v, total, *cache.past), outputs, **attrs)
    if split_keys:
        join_heads(b, outputs[0], b.output(0))
    return ""


def _counted(b: Builder, counts: str, k: str, split_keys: bool, past: str) -> str:
    """1 for as many keys of each batch entry as are counted, else 0; [batch, keys] int32."""
    axis = 2 if split_keys else 1
    length = b.op("Shape", k, start=axis, end=axis + 1)
    if past:
        length = b.op("Add", length, b.op("Shape", past, start=2, end=3))
    zero, one = (b.constant(np.array(n, np.int64)) for n in (0, 1))
    places = b.op("Range", zero, b.op("Reshape", length, b.int_constant()), one)
    inside = b.op(
        "Less", b.op("Cast", places, to=INT32.code), b.op("Unsqueeze", counts, b.int_constant(1))
    )
    return b.op("Cast", inside, to=INT32.code)


def _additive(b: Builder, mask: str, index: int) -> str:
    """0 where a mask is positive, else the filter value; [batch, 1, 1 or queries, keys].

    One of rank 1 has become one of rank 2.
    """
    filler = float(b.attr("mask_filter_value", -10000.0))
    kept = b.op("Greater", mask, b.constant(np.zeros((), b.dtype(index).numpy)))
    numbers = (b.constant(np.array(n, np.float32)) for n in (0.0, filler))
    chosen = b.op("Where", kept, *numbers)
    return b.op(
        "Unsqueeze", chosen, b.int_constant(*((1,) if len(b.shape(index)) == 3 else (1, 2)))
    )
