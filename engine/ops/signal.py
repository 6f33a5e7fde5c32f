"""Windows of signals; of DFT, STFT and mel weights types only, they run on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from engine.dims import Dim, dmax, floordiv
from engine.dtypes import from_code
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
    FLOATS,
    YES,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    no,
    register,
)


def _length(view: InferView, index: int, hint: str) -> Dim:
    """The content of a scalar input, or a new symbol."""
    known = view.dim_list(index)
    if known is None:
        return view.fresh(hint)
    if len(known) != 1:
        raise ShapeError(f"{view.describe()}: input {index} must be a scalar")
    return known[0]


def _window(view: InferView) -> list[ValueType]:
    dtype = from_code(int(view.attr("output_datatype", 1)))
    return [TensorType(dtype, (_length(view, 0, "size"),))]


def _mel_weights(view: InferView) -> list[ValueType]:
    dtype = from_code(int(view.attr("output_datatype", 1)))
    bins = _length(view, 0, "bins")
    return [TensorType(dtype, (floordiv(_length(view, 1, "dft_length"), 2) + 1, bins))]


def _dft(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x]
    known = view.ints(2) if view.has(2) else [-2]
    if known is None:
        # along any axis but the last one
        lead = tuple(view.fresh("bins") for _ in x.shape[:-1])
        return [TensorType(x.dtype, (*lead, view.fresh("parts")))]
    axis = view.normal_axis(known[0], len(x.shape))
    if axis == len(x.shape) - 1:
        raise ShapeError(f"{view.describe()}: the last axis holds real and imaginary parts")
    half, back = bool(view.attr("onesided", 0)), bool(view.attr("inverse", 0))
    size = 2 * (x.shape[axis] - 1) if half and back else x.shape[axis]
    if view.has(1):
        size = _length(view, 1, "dft_length")
    if half and not back:
        size = floordiv(size, 2) + 1
    parts = 1 if half and back else 2
    return [TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 : -1], parts))]


def _stft(view: InferView) -> list[ValueType]:
    signal = view.type(0)
    if signal.shape is None or len(signal.shape) != 3:
        raise ShapeError(f"{view.describe()}: the signal must be [batch, length, 1 or 2]")
    step = _length(view, 1, "step")
    if view.has(3):
        frame = _length(view, 3, "frame_length")
    elif view.has(2):
        frame = view.shape(2)[0]
    else:
        raise ShapeError(f"{view.describe()}: neither window nor frame_length is given")
    batch, length, _ = signal.shape
    if step == 0:
        raise ShapeError(f"{view.describe()}: frame_step is 0")
    frames = floordiv(length - frame, step) + 1
    bins = floordiv(frame, 2) + 1 if int(view.attr("onesided", 1)) else frame
    return [TensorType(signal.dtype, (batch, frames, bins, 2))]


_WEIGHTS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""Of the constant, of the cosine, and of the cosine of twice the angle."""


def _window_supports(view: NodeView) -> Support:
    if view.out().dtype.name not in FLOATS:
        return no(f"its kernel makes no {view.out().dtype}")
    return YES


def _lower_window(view: Lowering) -> Sequence[Stage]:
    size = view.out_shape()[0]
    mean, first, second = _WEIGHTS[view.node.op_type]
    words: dict[str, Dim | float] = {
        "size": size,
        "period": dmax(size if view.attr("periodic", 1) else size - 1, 1),
        "edge": mean - first + second,
        "first": first,
        "second": second,
    }
    tensors = {"y": view.node.outputs[0]}
    return [(KernelCall("signal_window", tensors, words, linear(size)),)]


for _name in _WEIGHTS:
    register(
        OpDef(
            _name,
            17,
            infer=_window,
            lower=_lower_window,
            supports=_window_supports,
            limits="sizes not known when planning; float64",
            dtypes=frozenset(),
            shape_inputs=(0,),
            epilogue=True,
            flops=lambda view: 40 * view.out_shape()[0],
            tolerance=1e-6,
        )
    )
register(OpDef("MelWeightMatrix", 17, infer=_mel_weights))
register(OpDef("DFT", 20, infer=_dft))
register(OpDef("STFT", 17, infer=_stft))
