"""The attention operators of com.microsoft, and the norms that surround them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpu_fallback.attention import (
    grouped_matmul,
    heads_first,
    heads_joined,
    probabilities,
    rotary_embedding,
)
from cpu_fallback.numeric import wide
from cpu_fallback.registry import Tensor, cpu_op

DOMAIN = "com.microsoft"


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float = 0.0
) -> Tensor:
    """[B, heads, length, size] of queries, keys and values -> [B, length, heads * value size]."""
    work = wide(q.dtype)
    scores = grouped_matmul(q.astype(work) * work.type(scale), k.astype(work).swapaxes(-1, -2))
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    y = grouped_matmul(probabilities(scores, None), v.astype(work))
    joined = heads_joined(y)
    return np.asarray(joined.astype(q.dtype))


def _packed_rows(x: Tensor) -> Tensor:
    """[batch, seq, heads, size] -> [batch, seq, heads * size]."""
    batch, seq, heads, size = x.shape
    return x.reshape(batch, seq, heads * size)


def _padding_bias(mask: Tensor, batch: int, n_key: int, filler: float) -> Tensor:
    """Additive [B, 1, 1 or S, T] of a mask: ends [B] (or ends and starts [2 B]), or 0 and 1.

    Raises: ValueError for another shape.
    """
    positions = np.arange(n_key)
    if mask.ndim == 1 and mask.shape[0] in (batch, 2 * batch):
        keep = positions < mask[:batch, None]
        if mask.shape[0] == 2 * batch:
            keep &= positions >= mask[batch:, None]
        keep = keep[:, None, None]
    elif mask.ndim == 2:
        keep = mask[:, None, None] > 0
    elif mask.ndim == 3:
        keep = mask[:, None] > 0
    else:
        raise ValueError(f"an attention mask of shape {mask.shape} is not implemented")
    return np.where(keep, np.float32(0), np.float32(filler))


def _causal_bias(n_query: int, n_key: int) -> Tensor:
    """Additive [S, T]: each query sees the keys up to its own place, counted from the end."""
    ahead = np.arange(n_key) - np.arange(n_query)[:, None] - (n_key - n_query)
    return np.where(ahead <= 0, np.float32(0), np.finfo(np.float32).min)


def _summed(parts: Sequence[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return None if not given else np.asarray(sum(given[1:], given[0]))


@cpu_op("MultiHeadAttention", since=1, domain=DOMAIN)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of query [B, S, heads * size]; key, value alike or [B, heads, T, size].

    Returns: the result [B, S, heads * value size], and keys and values with the past before them.

    Raises: ValueError for packed inputs without key or value, or an unknown mask.
    Source: com.microsoft MultiHeadAttention-1.
    """
    if query.ndim == 5:
        query, key, value = (_packed_rows(query[:, :, :, i]) for i in range(3))
    elif key is not None and key.ndim == 5:
        key, value = (_packed_rows(key[:, :, :, i]) for i in range(2))
    if key is None or value is None:
        raise ValueError("MultiHeadAttention needs a key and a value, or them packed")
    if bias is not None:
        width = query.shape[-1]
        query = query + bias[:width]
        if key.ndim == 3:
            key = key + bias[width : width + key.shape[-1]]
            value = value + bias[width + key.shape[-1] :]
    q = heads_first(query, num_heads, "query")
    k, v = heads_first(key, num_heads, "key"), heads_first(value, num_heads, "value")
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    n_query, n_key = q.shape[2], k.shape[2]
    total = _summed(
        [
            None
            if key_padding_mask is None
            else _padding_bias(key_padding_mask, q.shape[0], n_key, mask_filter_value),
            attention_bias,
            _causal_bias(n_query, n_key) if unidirectional else None,
        ]
    )
    factor = scale if scale else 1 / float(np.sqrt(q.shape[3]))
    y = _attend(q, k, v, total, factor)
    return y, np.ascontiguousarray(k), np.ascontiguousarray(v)


@cpu_op("Attention", since=1, domain=DOMAIN)
def attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, Tensor]:
    """Self-attention of `x` [B, S, I] through weights [I, query + key + value widths].

    past: [2, B, heads, P, size]. Returns the result and the past with the new keys and values.

    Raises: ValueError for an unknown mask. Source: com.microsoft Attention-1.
    """
    work = wide(x.dtype)
    joined = np.matmul(x.astype(work), weights.astype(work))
    if bias is not None:
        joined = joined + bias.astype(work)
    third = weights.shape[1] // 3
    widths = list(qkv_hidden_sizes) if qkv_hidden_sizes else [third, third, third]
    q, k, v = np.split(joined.astype(x.dtype), np.cumsum(widths)[:-1], axis=-1)
    y, keys, values = multi_head_attention(
        q,
        k,
        v,
        None,
        mask_index,
        attention_bias,
        None if past is None else past[0],
        None if past is None else past[1],
        num_heads=num_heads,
        mask_filter_value=mask_filter_value,
        scale=scale,
        unidirectional=unidirectional,
    )
    present = np.stack([keys, values]) if keys.shape == values.shape else np.empty(0, x.dtype)
    return y, present


@cpu_op("RotaryEmbedding", since=1, domain=DOMAIN)
def rotary(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Rotates pairs of `x` ([B, S, heads * size] or [B, heads, S, size]) by position.

    position_ids: [B, S], or [1], the position of the first token.
    Source: com.microsoft RotaryEmbedding-1.
    """
    length = x.shape[2] if x.ndim == 4 else x.shape[1]
    places = position_ids
    if position_ids.ndim == 1:
        places = np.tile(position_ids.reshape(()) + np.arange(length), (x.shape[0], 1))
    size = rotary_embedding_dim or 2 * cos_cache.shape[1]
    return rotary_embedding(
        x,
        cos_cache,
        sin_cache,
        places,
        interleaved=interleaved,
        num_heads=num_heads or (None if x.ndim == 4 else x.shape[2] // size),
        rotary_embedding_dim=rotary_embedding_dim,
    )


def _appended(past: Tensor | None, new: Tensor, starts: Tensor, total: int) -> Tensor:
    """Cache [B, heads, max(P, total), size] with `new` from starts[b] on."""
    batch, heads, length, size = new.shape
    capacity = total if past is None else max(total, past.shape[2])
    cache = np.zeros((batch, heads, capacity, size), new.dtype)
    if past is not None:
        cache[:, :, : past.shape[2]] = past
    rows = starts[:, None] + np.arange(length)
    cache.transpose(0, 2, 1, 3)[np.arange(batch)[:, None], rows] = new.transpose(0, 2, 1, 3)
    return cache


@cpu_op("GroupQueryAttention", since=1, domain=DOMAIN)
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    kv_num_heads: int,
    num_heads: int,
    do_rotary: int = 0,
    local_window_size: int = -1,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention with `num_heads / kv_num_heads` query heads per key head and a cache.

    query: [B, S, heads * size], or query, key and value side by side; past_*: [B, kv heads, P,
    size]; seqlens_k: [B], keys of each entry less one. Returns the result and the new caches.

    Raises: ValueError for smooth_softmax. Source: com.microsoft GroupQueryAttention-1.
    """
    if smooth_softmax:
        raise ValueError("GroupQueryAttention with smooth_softmax is not implemented")
    if key is None or value is None:
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        cuts = [num_heads * size, (num_heads + kv_num_heads) * size]
        query, key, value = np.split(query, cuts, axis=2)
    q, batch, length = heads_first(query, num_heads, "query"), query.shape[0], query.shape[1]
    k, v = heads_first(key, kv_num_heads, "key"), heads_first(value, kv_num_heads, "value")
    totals = seqlens_k.reshape(-1).astype(np.int64) + 1
    total = int(total_sequence_length.reshape(()))
    starts = np.zeros(batch, np.int64) if total == length else totals - length
    if do_rotary and cos_cache is not None and sin_cache is not None:
        places = starts[:, None] + np.arange(length) if position_ids is None else position_ids
        dim = 2 * cos_cache.shape[1]
        options = {"interleaved": rotary_interleaved, "rotary_embedding_dim": dim}
        q = rotary_embedding(q, cos_cache, sin_cache, places, **options)
        k = rotary_embedding(k, cos_cache, sin_cache, places, **options)
    keys = _appended(past_key, k, starts, total)
    values = _appended(past_value, v, starts, total)
    ahead = np.arange(total) - (starts[:, None, None, None] + np.arange(length)[:, None])
    seen = ahead <= 0
    if local_window_size > 0:
        seen &= ahead > -local_window_size
    bias = np.where(seen, np.float32(0), np.float32(-np.inf))
    if attention_bias is not None:
        bias = bias + attention_bias[..., :total].astype(np.float32)
    factor = scale if scale else 1 / float(np.sqrt(q.shape[3]))
    y = _attend(q, keys[:, :, :total], values[:, :, :total], bias, factor, softcap)
    return y, keys, values


@cpu_op("EmbedLayerNormalization", since=1, domain=DOMAIN)
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the embeddings of tokens [B, S], normalised over the last dimension.

    Returns: the result [B, S, width], the number of tokens per row by `mask` (int32), the sum.
    Source: com.microsoft EmbedLayerNormalization-1.
    """
    work = wide(word_embedding.dtype)
    places = np.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
    total = word_embedding[input_ids].astype(work) + position_embedding[places].astype(work)
    if segment_ids is not None and segment_embedding is not None:
        total = total + segment_embedding[segment_ids].astype(work)
    centred = total - total.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + epsilon)
    result = centred / deviation * gamma.astype(work) + beta.astype(work)
    counts = np.zeros(input_ids.shape[0], np.int32)
    if mask is not None:
        counts = np.asarray(mask.sum(axis=1), dtype=np.int32)
    dtype = word_embedding.dtype
    return result.astype(dtype), counts, total.astype(dtype)


@cpu_op("SimplifiedLayerNormalization", since=1)
@cpu_op("SimplifiedLayerNormalization", since=1, domain=DOMAIN)
def simplified_layer_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    """Root-mean-square normalisation over the dimensions from `axis` on, and its inverse factor.

    Source: SimplifiedLayerNormalization-1, as ONNX Runtime writes it into optimised models.
    """
    values = x.astype(wide(x.dtype))
    over = tuple(range(axis % x.ndim, x.ndim))
    inverse = 1 / np.sqrt((values * values).mean(axis=over, keepdims=True) + epsilon)
    result = (values * inverse).astype(x.dtype) * scale
    return result.astype(x.dtype), np.asarray(inverse, dtype=np.float32)
