"""GroupQueryAttention of com.microsoft as standard operators, for `lower_contrib`.

[Split +] [RotaryEmbedding +] Concat + TensorScatter + Attention

A cache has room for all keys of a batch, whose entries may have fewer. New keys are written behind
those of each entry, and Attention-24 is told how many there are.
"""

from __future__ import annotations

import numpy as np

from engine.dtypes import INT32, INT64
from engine.passes.build import Builder
from engine.passes.split_cache import join_heads, split_heads
from engine.records import dataclass

QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINES, SINES, PLACES, BIAS = range(11)


@dataclass(frozen=True)
class _Sizes:
    """Names of values; those of int32 are added up there, which stays in 32 bits.

    Attributes:
        length: [1] int64, new tokens.
        total: [1] int64, keys of the longest entry.
        starts, ends: [batch] int32, where the new keys of each entry go.
        batch: [1] int64.
    """

    length: str
    total: str
    starts: str
    ends: str
    batch: str


def group_query_attention(b: Builder) -> str:
    """Adds the nodes, or says why not."""
    if any(b.has(i) for i in range(BIAS + 1, len(b.node.inputs))) or b.wanted(3):
        return "it has a sink, scales of its cache, or returns its scores"
    if b.attr("smooth_softmax", 0):
        return "its softmax is smooth"
    if b.dim_list(TOTAL) is None:
        return "its total length does not follow from sizes"
    heads, key_heads = int(b.attr("num_heads")), int(b.attr("kv_num_heads"))
    parts = _parts(b, heads, key_heads)
    if isinstance(parts, str):
        return parts
    sizes = _sizes(b)
    q, k = parts[0], parts[1]
    if b.attr("do_rotary", 0):
        if not b.has(COSINES):
            return "it rotates without angles"
        places = _places(b, sizes)
        q, k = _rotated(b, q, places, heads), _rotated(b, k, places, key_heads)
    keys = _cache(b, split_heads(b, k, key_heads), PAST_KEY, sizes, b.output(1))
    values = _cache(b, split_heads(b, parts[2], key_heads), PAST_VALUE, sizes, b.output(2))
    bias = b.node.input(BIAS)
    if bias:
        rank = len(b.shape(BIAS))
        bias = b.op("Slice", bias, b.int_constant(0), sizes.total, b.int_constant(rank - 1))
    window, softcap = int(b.attr("local_window_size", -1)), float(b.attr("softcap", 0.0))
    inputs = (split_heads(b, q, heads), keys, values, bias, "", "")
    attended = b.op(
        "Attention",
        *inputs,
        b.op("Cast", sizes.ends, to=INT64.code),
        is_causal=1,
        left_window_size=window - 1 if window > 0 else None,
        scale=float(b.attr("scale", 0.0)) or None,
        softcap=softcap or None,
    )
    join_heads(b, attended, b.output(0))
    return ""


def _parts(b: Builder, heads: int, key_heads: int) -> tuple[str, str, str] | str:
    """Queries, keys and values, each [batch, length, heads * size]; or why not."""
    q, k, v = (b.node.input(i) for i in range(3))
    if k and v:
        return q, k, v
    width = b.shape(QUERY)[2]
    if not isinstance(width, int):
        return "the widths of its parts are unknown"
    size = width // (heads + 2 * key_heads)
    names = b.names(3, "Split")
    b.many("Split", (q, b.int_constant(heads * size, *[key_heads * size] * 2)), names, axis=2)
    return names[0], names[1], names[2]


def _sizes(b: Builder) -> _Sizes:
    query = b.node.inputs[QUERY]
    length = b.op("Shape", query, start=1, end=2)
    batch = b.op("Shape", query, start=0, end=1)
    total = b.op("Cast", b.node.inputs[TOTAL], to=INT64.code)
    total = b.op("Reshape", total, b.int_constant(1))
    lengths = b.op("Reshape", b.node.inputs[LENGTHS], b.int_constant(-1))
    new = b.op("Cast", length, to=INT32.code)
    zero, one = (b.constant(np.array(n, np.int32)) for n in (0, 1))
    # the first call may have padding behind its tokens, which later calls overwrite
    behind = b.op("Sub", b.op("Add", lengths, one), new)
    starts = b.op("Where", b.op("Equal", total, length), zero, behind)
    return _Sizes(length, total, starts, b.op("Add", starts, new), batch)


def _places(b: Builder, sizes: _Sizes) -> str:
    """The position of each new token, [batch, length]."""
    if b.has(PLACES):
        return b.node.inputs[PLACES]
    length = b.op("Reshape", sizes.length, b.int_constant())
    zero, one = (b.constant(np.array(n, np.int64)) for n in (0, 1))
    steps = b.op("Cast", b.op("Range", zero, length, one), to=INT32.code)
    places = b.op("Add", b.op("Unsqueeze", sizes.starts, b.int_constant(1)), steps)
    return b.op("Cast", places, to=INT64.code)


def _rotated(b: Builder, x: str, places: str, heads: int) -> str:
    half = b.shape(COSINES)[1]
    return b.op(
        "RotaryEmbedding",
        x,
        b.node.inputs[COSINES],
        b.node.inputs[SINES],
        places,
        interleaved=int(b.attr("rotary_interleaved", 0)),
        num_heads=heads,
        rotary_embedding_dim=2 * half if isinstance(half, int) else 0,
    )


def _cache(b: Builder, new: str, past: int, sizes: _Sizes, output: str) -> str:
    """The past with new keys or values [batch, heads, length, size] written into it."""
    known = b.dim_list(TOTAL)
    if not b.has(past) and known is not None and known[0] == b.shape(QUERY)[1]:
        return b.op("Identity", new, output=output)
    old, rows = b.node.input(past), sizes.total
    if old:
        gap = b.op("Sub", sizes.total, b.op("Shape", old, start=2, end=3))
        rows = b.op("Max", gap, b.int_constant(0))
        if known is not None and isinstance(known[0], int) and known[0] == b.shape(past)[2]:
            rows = ""
    if rows:
        ends = (b.op("Shape", new, start=i, end=i + 1) for i in (1, 3))
        shape = b.op("Concat", sizes.batch, next(ends), rows, next(ends), axis=0)
        blank = b.op("Expand", b.constant(np.zeros((), b.dtype(QUERY).numpy)), shape)
        old = b.op("Concat", old, blank, axis=2) if old else blank
    starts = b.op("Cast", sizes.starts, to=INT64.code)
    return b.op("TensorScatter", old, new, starts, output=output, axis=2)
