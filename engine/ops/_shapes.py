"""Shape inference that several families share: same shape, broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from engine import dims
from engine.dims import Dim
from engine.dtypes import DType
from engine.errors import ShapeError
from engine.ir import Shape, TensorType, ValueType
from engine.ops import Infer, InferView, NodeView


def broadcast_shapes(view: NodeView, shapes: Sequence[Shape]) -> Shape:
    """The shape that `shapes` broadcast to, NumPy style.

    Raises: ShapeError if they do not. Source: ONNX, Broadcasting in ONNX.
    """
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            same = view.same(out[axis], dim) if isinstance(view, InferView) else None
            try:
                out[axis] = dims.broadcast(out[axis], dim) if same is None else same
            except ValueError as error:
                raise ShapeError(f"{view.describe()}: {error} on axis {axis}") from error
    return tuple(out)


def broadcast_type(view: NodeView, indices: Sequence[int], dtype: DType) -> TensorType:
    """`dtype` with the broadcast shape of the given inputs; rank unknown if any input's is."""
    shapes = [view.type(i).shape for i in indices]
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return TensorType(dtype)
    return TensorType(dtype, broadcast_shapes(view, known))


def infer_same(view: InferView) -> Sequence[ValueType]:
    """Type of input 0, for every output."""
    return [view.type(0)] * len(view.node.outputs)


def infer_broadcast(dtype: DType | None = None, of: int = 0) -> Infer:
    """All inputs broadcast; `dtype`, or the element type of input `of`."""

    def infer(view: InferView) -> Sequence[ValueType]:
        indices = range(len(view.node.inputs))
        return [broadcast_type(view, indices, dtype or view.dtype(of))]

    return infer


def infer_elements(dtype: DType) -> Infer:
    """Shape of input 0 with another element type."""

    def infer(view: InferView) -> Sequence[ValueType]:
        return [TensorType(dtype, view.type(0).shape)]

    return infer
