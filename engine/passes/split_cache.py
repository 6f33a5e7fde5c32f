"""`Attention(q, k, v, past_key, past_value) => Concat(past_key, k), Concat(past_value, v),
Attention`, so that caches are appended to where they lie, and kernels see whole keys and values.

Where queries only reach keys up to their own place, the first one's place is the length of the
past. Without a past that is `nonpad_kv_seqlen` less the number of queries; keys from there on,
which it makes padding, are out of reach anyway.
"""

from __future__ import annotations

from engine.ir import Graph, Node
from engine.passes.base import PassResult
from engine.passes.build import Builder, Rule, replace_nodes

_Q, _K, _V, _MASK, _PAST_KEY, _PAST_VALUE, _VALID = range(7)
LEAST = 24
"""First version that has `nonpad_kv_seqlen`."""


def split_cache(graph: Graph) -> PassResult:
    """Takes past and present out of Attention."""
    return replace_nodes(graph, _rule_of)


def _rule_of(node: Node) -> Rule | None:
    if node.op_type != "Attention" or node.domain:
        return None
    cached = node.input(_PAST_KEY) or any(node.outputs[1:3])
    return _split if cached else None


def split_heads(b: Builder, x: str, heads: int) -> str:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    shaped = b.op("Reshape", x, b.int_constant(0, 0, heads, -1))
    return b.op("Transpose", shaped, perm=[0, 2, 1, 3])


def join_heads(b: Builder, x: str, output: str) -> None:
    """[batch, heads, length, size] -> [batch, length, heads * size], as `output`."""
    turned = b.op("Transpose", x, perm=[0, 2, 1, 3])
    b.op("Reshape", turned, b.int_constant(0, 0, -1), output=output)


def _split(b: Builder) -> str:
    node, attrs = b.node, dict(b.node.attrs)
    if node.since_version < LEAST:
        return f"its form is older than opset {LEAST}"
    if node.input(_VALID) and node.input(_PAST_KEY):
        return "it has a cache of its own and one outside"
    ranks = [len(b.shape(i)) for i in (_Q, _K, _V)]
    packed = ranks[0] == 3
    q, k, v = node.inputs[:3]
    if packed:
        query_heads, key_heads = attrs.pop("q_num_heads", None), attrs.pop("kv_num_heads", None)
        if not query_heads or not key_heads or ranks != [3, 3, 3]:
            return "its heads cannot be told"
        q = split_heads(b, q, int(query_heads))
        k = split_heads(b, k, int(key_heads))
        v = split_heads(b, v, int(key_heads))
    valid = node.input(_VALID)
    if node.input(_PAST_KEY):
        axis = 1 if packed else 2
        bounded, as_many = _bounded(b), b.shape(_Q)[axis] == b.shape(_K)[axis]
        if bounded and not b.attr("is_causal", 0) and not as_many:
            return "its window would reach keys behind those of the last query"
        k = b.op("Concat", node.input(_PAST_KEY), k, output=b.output(1), axis=2)
        v = b.op("Concat", node.input(_PAST_VALUE), v, output=b.output(2), axis=2)
        if bounded:
            valid = _reach(b, q, k if as_many else "")
    else:
        for name, index in ((k, 1), (v, 2)):
            if b.output(index):
                b.op("Identity", name, output=b.output(index))
    y = node.outputs[0] if not packed else b.names(1, "Attention")[0]
    scores = ("", "", b.output(3)) if b.output(3) else ()
    b.many("Attention", (q, k, v, node.input(_MASK), "", "", valid), (y, *scores), **attrs)
    if packed:
        join_heads(b, y, node.outputs[0])
    return ""


def _bounded(b: Builder) -> bool:
    """Whether what a query reaches depends on its place."""
    windows = (int(b.attr(f"{side}_window_size", -1)) for side in ("left", "right"))
    return bool(b.attr("is_causal", 0)) or any(w >= 0 for w in windows)


def _reach(b: Builder, queries: str, keys: str) -> str:
    """The lengths of past and queries together, once for each batch entry; int64.

    If `keys` are given, all of them are as many, of which it is known that int32 holds them.
    """
    if keys:
        length = b.op("Shape", keys, start=2, end=3)
    else:
        past = b.op("Shape", b.node.input(_PAST_KEY), start=2, end=3)
        length = b.op("Add", past, b.op("Shape", queries, start=2, end=3))
    return b.op("Expand", length, b.op("Shape", queries, start=0, end=1))
