"""What selects by value: TopK, Unique, NonMaxSuppression."""

from __future__ import annotations

import numpy as np

from cpu_fallback.numeric import is_integer, positive_axis
from cpu_fallback.registry import Tensor, cpu_op


def _comparable(x: Tensor) -> Tensor:
    """`x` in a type NumPy sorts natively, order kept."""
    if x.dtype.kind in "iufbO":
        return x
    return x.astype(np.int32 if is_integer(x.dtype) else np.float32)


@cpu_op("TopK", since=10)
def top_k(
    x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest elements along `axis` and their indices (int64), in order.

    Among equal elements the lower index comes first. NaN comes last.

    Raises: ValueError if k exceeds the dimension. Source: ONNX TopK-24.
    """
    where, count = positive_axis(axis, x.ndim), int(k.reshape(-1)[0])
    if not 0 <= count <= x.shape[where]:
        raise ValueError(f"k = {count} of {x.shape[where]} elements along axis {axis}")
    keys = _comparable(x)
    if largest:
        keys = ~keys if keys.dtype.kind in "iub" else -keys
    order = np.argsort(keys, axis=where, kind="stable")
    picked = np.take(order, np.arange(count), axis=where)
    return np.take_along_axis(x, picked, axis=where), picked.astype(np.int64)


def _codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values in order, and for each element which one it is."""
    values, inverse = np.unique(_comparable(x), return_inverse=True)
    return values, inverse.reshape(x.shape)


@cpu_op("Unique", since=11)
def unique(
    x: Tensor, *, axis: int | None = None, sorted: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distinct elements (of the flat tensor), or slices along `axis`.

    Returns: the distinct ones, sorted or by first occurrence; the index of each first occurrence;
    which one each element is; how often each occurs (int64). Source: ONNX Unique-28.
    """
    if axis is None:
        flat = x.reshape(-1)
        rows, where = _codes(flat)[1].reshape(-1, 1), 0
    else:
        flat, where = x, positive_axis(axis, x.ndim)
        moved = np.moveaxis(x, where, 0)
        width = int(np.prod(moved.shape[1:]))
        rows = _codes(moved)[1].reshape(moved.shape[0], width)
    _, first, inverse, counts = np.unique(
        rows.reshape(-1) if rows.shape[1] == 1 else rows,
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=0,
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    distinct = np.take(flat, first, axis=where)
    return distinct, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def _corners(boxes: Tensor, centred: bool) -> Tensor:
    """[..., 4] boxes as y1, x1, y2, x2 with the lesser corner first (centred: x, y, w, h)."""
    if centred:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        parts = (y - height / 2, x - width / 2, y + height / 2, x + width / 2)
        return np.stack(parts, axis=-1)
    low = np.minimum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, np.maximum(boxes[..., :2], boxes[..., 2:])], axis=-1)


def _keep(boxes: Tensor, areas: Tensor, order: Tensor, limit: int, threshold: float) -> list[int]:
    """Indices kept of `order` (best first): each drops what overlaps it by more than allowed."""
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        overlap = np.prod(np.maximum(high - low, 0), axis=-1)
        union = areas[best] + areas[order] - overlap
        drop = (overlap > 0) & (union > 0) & (overlap / union > threshold)
        order = order[~drop]
    return kept


@cpu_op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None = None,
    iou_threshold: Tensor | None = None,
    score_threshold: Tensor | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """Greedy selection of boxes per batch entry and class: [count, 3] int64 (batch, class, box).

    boxes: [batches, boxes, 4], scores: [batches, classes, boxes]. Without
    max_output_boxes_per_class nothing is selected.

    Raises: ValueError for an iou_threshold outside [0, 1]. Source: ONNX NonMaxSuppression-11.
    """
    limit = 0
    if max_output_boxes_per_class is not None:
        limit = int(max_output_boxes_per_class.reshape(-1)[0])
    threshold = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
    if not 0 <= threshold <= 1:
        raise ValueError(f"iou_threshold {threshold} is outside [0, 1]")
    floor = None if score_threshold is None else score_threshold.reshape(-1)[0]
    corners = _corners(boxes.astype(np.float32), bool(center_point_box))
    areas = np.prod(corners[..., 2:] - corners[..., :2], axis=-1)
    selected: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            values = scores[batch, kind]
            order = np.argsort(-values, kind="stable")
            if floor is not None:
                order = order[values[order] > floor]
            kept = _keep(corners[batch], areas[batch], order, limit, threshold)
            selected.extend((batch, kind, box) for box in kept)
    return np.array(selected, dtype=np.int64).reshape(-1, 3)
