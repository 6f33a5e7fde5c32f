"""Attention and what belongs to it: rotary embedding, linear attention, cache updates."""

from __future__ import annotations

import numpy as np

from cpu_fallback.numeric import element_type, wide
from cpu_fallback.recurrent import sigmoid
from cpu_fallback.registry import Tensor, cpu_op


def heads_first(x: Tensor, heads: int | None, name: str) -> Tensor:
    """[batch, seq, heads * size] -> [batch, heads, seq, size]; rank 4 is left as it is."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise ValueError(f"{name} of shape {x.shape} cannot be split into {heads} heads")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def heads_joined(x: Tensor) -> Tensor:
    """[batch, heads, seq, size] -> [batch, seq, heads * size]."""
    batch, heads, seq, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * size)


def _bias(
    attn_mask: Tensor | None,
    offset: Tensor,
    valid: Tensor | None,
    lengths: tuple[int, int],
    window: tuple[int, int],
    dtype: np.dtype[np.generic],
) -> Tensor | None:
    """What is added to the scores, -inf where a key is out of reach; None if nothing is.

    offset: [batch or 1], position of the first query; valid: [batch], number of keys in use;
    lengths: of queries and keys; window: keys to the left and right, -1 for no bound.
    """
    n_query, n_key = lengths
    reach: Tensor | None = None
    position = np.arange(n_query)[:, None] + offset.reshape(-1, 1, 1, 1)
    ahead = np.arange(n_key)[None, :] - position
    left, right = window
    if right >= 0:
        reach = ahead <= right
    if left >= 0:
        reach = ahead >= -left if reach is None else reach & (ahead >= -left)
    if valid is not None:
        inside = np.arange(n_key)[None, :] < valid.reshape(-1, 1, 1, 1)
        reach = inside if reach is None else reach & inside
    if attn_mask is not None:
        missing = n_key - attn_mask.shape[-1]
        is_bool = attn_mask.dtype == np.bool_
        if missing > 0:
            widths = [(0, 0)] * (attn_mask.ndim - 1) + [(0, missing)]
            attn_mask = np.pad(attn_mask, widths, constant_values=False if is_bool else -np.inf)
        if not is_bool:
            mask = attn_mask.astype(dtype)
            return mask if reach is None else np.where(reach, mask, dtype.type(-np.inf))
        reach = attn_mask if reach is None else reach & attn_mask
    return None if reach is None else np.where(reach, dtype.type(0), dtype.type(-np.inf))


def probabilities(scores: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax over the last dimension; a row whose bias is all -inf becomes 0."""
    if scores.shape[-1] == 0:
        return scores
    peak = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = weights.sum(axis=-1, keepdims=True)
    shares = np.asarray(weights / np.where(total == 0, 1, total))
    if bias is None:
        return shares
    masked = np.isneginf(bias.max(axis=-1, keepdims=True))
    return np.where(masked, shares.dtype.type(0), shares)


def grouped_matmul(queries: Tensor, keys: Tensor) -> Tensor:
    """[B, Hq, L, D] by [B, Hk, D, S], each key head for Hq / Hk query heads."""
    batch, heads, length, size = queries.shape
    groups = keys.shape[1]
    if groups == 0 or heads % groups:
        raise ValueError(f"{heads} query heads are no multiple of {groups} key heads")
    if keys.shape[0] != batch:
        raise ValueError(f"a batch of {batch} queries does not fit one of {keys.shape[0]} keys")
    merged = queries.reshape(batch, groups, heads // groups * length, size)
    product = np.matmul(merged, keys)
    return np.asarray(product.reshape(batch, heads, length, keys.shape[-1]))


def _rounded(scores: Tensor, softmax_precision: int | None) -> Tensor:
    """Scores as the softmax precision holds them, in the type to compute it in."""
    if softmax_precision is None:
        return scores
    precision = element_type(softmax_precision)
    return np.asarray(scores.astype(precision).astype(wide(precision)))


@cpu_op("Attention", since=23)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scaled dot-product attention with grouped heads, cache, masks, window and soft cap.

    q: [batch, heads, length, size] or [batch, length, heads * size]; k and v alike. Returns Y,
    present_key, present_value and the scores in the stage `qk_matmul_output_mode` names.

    Raises: ValueError if heads do not divide, or if past and nonpad_kv_seqlen are combined.
    Source: ONNX Attention-25.
    """
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value are given together or not at all")
    if nonpad_kv_seqlen is not None and past_key is not None:
        raise ValueError("nonpad_kv_seqlen is for caches outside of Attention, without past_key")
    packed, dtype = q.ndim == 3, q.dtype
    q = heads_first(q, q_num_heads, "Q")
    k = heads_first(k, kv_num_heads, "K")
    v = heads_first(v, kv_num_heads, "V")
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
    work, lengths = wide(dtype), (q.shape[2], k.shape[2])
    offset = np.array([past])
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.reshape(-1).astype(np.int64) - lengths[0]
    right = 0 if is_causal else right_window_size
    bias = _bias(attn_mask, offset, nonpad_kv_seqlen, lengths, (left_window_size, right), work)
    factor = work.type(1 / np.sqrt(q.shape[3]) if scale is None else scale)
    scores = grouped_matmul(q.astype(work) * factor, k.astype(work).swapaxes(-1, -2))
    stages = [scores]
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    stages.append(scores)
    if bias is not None:
        scores = scores + bias
    stages.append(scores)
    scores = _rounded(scores, softmax_precision)
    stages.append(probabilities(scores, bias))
    y = grouped_matmul(stages[3].astype(work), v.astype(work)).astype(dtype)
    if packed:
        y = heads_joined(y)
    return y, k, v, stages[qk_matmul_output_mode].astype(dtype)


@cpu_op("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """Rotates pairs of `x` by angles given as cos and sin; same shape and type as `x`.

    x: [batch, heads, length, size] or [batch, length, heads * size]; caches: [positions, dim / 2]
    with position_ids [batch, length], else [batch, length, dim / 2].

    Raises: ValueError if a cache does not have dim / 2 columns. Source: ONNX RotaryEmbedding-23.
    """
    heads = heads_first(x, num_heads, "X")
    dim = rotary_embedding_dim or heads.shape[3]
    if cos_cache.shape[-1] * 2 != dim or sin_cache.shape[-1] * 2 != dim:
        raise ValueError(
            f"caches of {cos_cache.shape[-1]} and {sin_cache.shape[-1]} columns rotate "
            f"{dim} dimensions; {dim // 2} columns are needed"
        )
    work = wide(x.dtype)
    cos = (cos_cache if position_ids is None else cos_cache[position_ids]).astype(work)
    sin = (sin_cache if position_ids is None else sin_cache[position_ids]).astype(work)
    cos, sin = cos[:, None], sin[:, None]
    first = slice(0, dim, 2) if interleaved else slice(0, dim // 2)
    second = slice(1, dim, 2) if interleaved else slice(dim // 2, dim)
    a, b = heads[..., first].astype(work), heads[..., second].astype(work)
    result = heads.astype(work)
    result[..., first] = cos * a - sin * b
    result[..., second] = sin * a + cos * b
    if x.ndim == 3:
        result = result.transpose(0, 2, 1, 3)
    return np.asarray(result.reshape(x.shape).astype(x.dtype))


_RULES = {"linear": (False, False), "gated": (True, False),
          "delta": (False, True), "gated_delta": (True, True)}  # fmt: skip


@cpu_op("LinearAttention", since=27)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """Attention by a recurrent state [batch, kv heads, key size, value size], step by step.

    query: [batch, length, heads * key size]; key, value alike; decay: [batch, length, kv heads or
    kv heads * key size]; beta: [batch, length, kv heads or 1].

    Raises: ValueError for an unknown rule, or decay or beta that it lacks or does not use.
    Source: ONNX LinearAttention-27.
    """
    if update_rule not in _RULES:
        raise ValueError(f"update_rule {update_rule!r} is none of {sorted(_RULES)}")
    gated, corrected = _RULES[update_rule]
    if gated != (decay is not None) or corrected != (beta is not None):
        raise ValueError(f"update_rule {update_rule!r} and the inputs decay and beta do not match")
    work = wide(query.dtype)
    q = heads_first(query, q_num_heads, "query").astype(work)
    k = heads_first(key, kv_num_heads, "key").astype(work)
    v = heads_first(value, kv_num_heads, "value").astype(work)
    batch, heads, length, size = k.shape
    groups = q_num_heads // kv_num_heads
    q = q.reshape(batch, heads, groups, length, size)
    state = np.zeros((batch, heads, size, v.shape[3]), work)
    if past_state is not None:
        state = past_state.astype(work)
    if decay is not None:
        gates = np.exp(heads_first(decay.astype(work), kv_num_heads, "decay"))
    if beta is not None:
        rates = heads_first(beta.astype(work), beta.shape[2], "beta")
    factor = scale if scale != 0.0 else 1 / np.sqrt(size)
    outputs = np.empty((batch, heads, groups, length, v.shape[3]), work)
    for t in range(length):
        k_t, v_t = k[:, :, t], v[:, :, t]
        if decay is not None:
            state = state * gates[:, :, t, :, None]
        if beta is not None:
            v_t = rates[:, :, t] * (v_t - np.matmul(k_t[:, :, None], state)[:, :, 0])
        state = state + k_t[..., :, None] * v_t[..., None, :]
        outputs[:, :, :, t] = np.matmul(q[:, :, :, t], state)
    width = q_num_heads * v.shape[3]
    y = (factor * outputs).transpose(0, 3, 1, 2, 4).reshape(batch, length, width)
    kept = query.dtype if past_state is None else past_state.dtype
    return y.astype(query.dtype), state.astype(kept)


@cpu_op("CausalConvWithState", since=27)
def causal_conv_with_state(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """Depthwise convolution of [batch, channels, length] over the past; weight [channels, 1, k].

    Returns: the result and the last k - 1 inputs, for the next call.

    Raises: ValueError for an unknown activation. Source: ONNX CausalConvWithState-27.
    """
    if activation not in ("none", "silu", "swish"):
        raise ValueError(f"activation {activation!r} is none of none, silu, swish")
    taps, length, work = weight.shape[2], x.shape[2], wide(x.dtype)
    if past_state is None:
        past_state = np.zeros((*x.shape[:2], taps - 1), x.dtype)
    padded = np.concatenate([past_state, x], axis=2)
    total = np.zeros(x.shape, work)
    for tap in range(taps):
        total += padded[:, :, tap : tap + length].astype(work) * weight[:, 0, tap, None].astype(
            work
        )
    if bias is not None:
        total += bias[:, None].astype(work)
    if activation != "none":
        total = total * sigmoid(total)
    return total.astype(x.dtype), padded[:, :, padded.shape[2] - (taps - 1) :]


@cpu_op("TensorScatter", since=24)
def tensor_scatter(
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """`past_cache` with `update` written along `axis` from write_indices[batch] on.

    Raises: ValueError for an unknown mode, an update past the end in mode "linear", or operands
        that differ in more than the length. Source: ONNX TensorScatter-24.
    """
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode {mode!r} is neither linear nor circular")
    axis %= past_cache.ndim
    if axis == 0:
        raise ValueError("TensorScatter along the batch dimension is not defined")
    sizes = [(*x.shape[:axis], *x.shape[axis + 1 :]) for x in (past_cache, update)]
    starts = np.zeros(past_cache.shape[0], np.int64) if write_indices is None else write_indices
    if sizes[0] != sizes[1] or starts.shape != past_cache.shape[:1]:
        raise ValueError(
            f"an update {update.shape} at {starts.shape} does not fit {past_cache.shape}"
        )
    capacity, length = past_cache.shape[axis], update.shape[axis]
    positions = starts.astype(np.int64)[:, None] + np.arange(length)
    if mode == "circular":
        positions %= max(capacity, 1)
    elif np.any((positions < 0) | (positions >= capacity)):
        raise ValueError(f"update of {length} from {starts.tolist()} does not fit in {capacity}")
    result = past_cache.copy()
    moved, source = np.moveaxis(result, axis, 1), np.moveaxis(update, axis, 1)
    moved[np.arange(past_cache.shape[0])[:, None], positions] = source
    return result
