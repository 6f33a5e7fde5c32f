"""Cast, CastLike and BitCast between floats, integers of up to 32 bits, int64 and bool."""

from __future__ import annotations

from collections.abc import Sequence

from engine import dtypes
from engine.dtypes import DType
from engine.errors import ShapeError
from engine.ir import Array, TensorType, ValueType
from engine.ops import (
    ALL,
    INTS,
    NIBBLES,
    SMALL_INTS,
    YES,
    Elementwise,
    InferView,
    NodeView,
    OpDef,
    Support,
    _symbolic,
    no,
    register,
)
from engine.ops._symbolic import elementwise_rule


def target(view: NodeView) -> DType:
    """The element type that a Cast, CastLike or BitCast node gives."""
    if view.node.op_type == "CastLike":
        return view.dtype(1)
    return dtypes.from_code(int(view.attr("to")))


def _infer(view: InferView) -> Sequence[ValueType]:
    return [TensorType(target(view), view.type(0).shape)]


def _contents(view: NodeView) -> Sequence[Array | None] | None:
    kind = target(view)
    if kind.name == "bool":
        return elementwise_rule(_symbolic.is_nonzero, (0,))(view)
    if kind.name in ("int32", "int64", "float32", "float64"):
        return elementwise_rule(_symbolic.same, (0,))(view)
    return None


def _expr(view: NodeView) -> str:
    source, kind = view.dtype(0).wgsl, target(view).wgsl
    if source == "f32" and target(view).name in SMALL_INTS:
        return "{T}(wrapped_i32({0}))"
    if source == kind:
        return "{0}"
    if kind == "bool":
        # of a float all bits but the sign, so that NaN and denormals count as true
        return "(bitcast<u32>({0}) << 1u) != 0u" if source == "f32" else "{0} != {S}(0)"
    if source == "bool":
        return "select({T}(0), {T}(1), {0})"
    if source == "f32":
        return f"saturate_{kind}({{0}})"
    return "{T}({0})"


def _supports(view: NodeView) -> Support:
    source, kind = view.dtype(0), target(view)
    if kind.name in NIBBLES:
        return no(f"its kernel makes no {kind}")
    if kind.name == "int64" and (source.is_float or source.name == "uint32"):
        return no(f"a {source} may exceed the 32 bits that int64 has on the GPU")
    return YES


register(
    OpDef(
        "Cast",
        since=6,
        infer=_infer,
        evaluate=_contents,
        elementwise=Elementwise(
            _expr, includes=("lib/float.wgsl", "lib/saturate.wgsl"), scalar=True
        ),
        supports=_supports,
        limits="to integers of less than 8 bits; float32 or uint32 to int64, which may exceed 32",
        dtypes=ALL | NIBBLES,
        tolerance=0.0,
    )
)
# on the GPU only as the Cast that it is rewritten to: its second operand is not broadcast
register(OpDef("CastLike", since=15, infer=_infer, evaluate=_contents))


def _bits(view: NodeView) -> str:
    source, kind = view.dtype(0), target(view)
    if source == kind:
        return "{0}"
    if source.name == "bool":
        return "select({T}(0), {T}(1), {0})"
    return "bitcast<{T}>({0})" if source.nbytes == 4 else "{T}({0})"


def _bits_supports(view: NodeView) -> Support:
    source, kind = view.dtype(0), target(view)
    if not kind.wgsl or kind.name in NIBBLES:
        return no(f"its kernel makes no {kind}")
    if source.name == "int64":
        return no("an int64 has only 32 bits on the GPU")
    if kind.name == "bool":
        return no("a bool has one bit on the GPU")
    if source != kind and (source.is_float or kind.is_float) and source.nbytes < 4:
        return no("floats of 16 bits pass through float32, which may change a NaN")
    return YES


def _infer_bits(view: InferView) -> Sequence[ValueType]:
    source, kind = view.dtype(0), target(view)
    if source.nbytes != kind.nbytes:
        raise ShapeError(f"{view.describe()}: {source} and {kind} differ in size")
    return [TensorType(kind, view.type(0).shape)]


register(
    OpDef(
        "BitCast",
        since=26,
        infer=_infer_bits,
        elementwise=Elementwise(_bits),
        supports=_bits_supports,
        limits="to or from floats of 16 bits, to bool",
        dtypes=INTS | {"float32", "bool"},
        tolerance=0.0,
    )
)
