"""Types of ONNX files as `ValueType`, and back."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import TypeProto, ValueInfoProto

from engine import dims, dtypes
from engine.dims import Dim
from engine.errors import ModelError
from engine.ir import OptionalType, SequenceType, TensorType, ValueType
from engine.records import dataclass

_UNNAMED = frozenset({"", "?", "*", "-1", "None"})


@dataclass(frozen=True)
class Declared:
    """An input or output as the model file declares it.

    Attributes:
        name: of the value.
        type: None where the file gives none. Sizes without a name are symbols `<name>_<axis>`.
        dims: per axis the size, the name, or None; None where the rank is not declared.
    """

    name: str
    type: ValueType | None
    dims: tuple[int | str | None, ...] | None = None


class FreshDims:
    """Symbols for sizes without a name: `<value>_<axis>`, unlike every name in the model."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self.made: dict[tuple[str, int], Dim] = {}

    def __call__(self, value: str, axis: int) -> Dim:
        key = (value, axis)
        if key not in self.made:
            name = f"{value}_{axis}"
            while name in self._taken:
                name += "_"
            self._taken.add(name)
            self.made[key] = dims.symbol(name)
        return self.made[key]


def dim_names(values: Iterable[ValueInfoProto]) -> set[str]:
    """Names of all sizes in the types of `values`."""
    return {
        dim.dim_param
        for value in values
        if value.type.HasField("tensor_type")
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }


def declared(value: ValueInfoProto, fresh: FreshDims) -> Declared:
    """What a file says of an input or output."""
    tensor = value.type.tensor_type
    sizes: tuple[int | str | None, ...] | None = None
    if value.type.HasField("tensor_type") and tensor.HasField("shape"):
        sizes = tuple(
            d.dim_param
            if d.dim_param not in _UNNAMED
            else (d.dim_value if d.dim_value > 0 else None)
            for d in tensor.shape.dim
        )
    return Declared(value.name, value_type(value.type, value.name, fresh), sizes)


def value_type(
    proto: TypeProto, name: str = "", fresh: FreshDims | None = None, zero: bool = False
) -> ValueType | None:
    """The type that a `TypeProto` describes; None if it is empty.

    Sizes without a name become symbols `<name>_<axis>`, and so do sizes of 0, unless `zero` is
    set: exporters write 0 for a size that they don't know.

    Raises: ModelError for an element type that does not exist, or a type that is no ONNX value's.
    """
    fresh = fresh or FreshDims(())
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        try:
            dtype = dtypes.from_code(tensor.elem_type)
        except KeyError:
            raise ModelError(
                f"value {name!r} has the unknown element type {tensor.elem_type}"
            ) from None
        if not tensor.HasField("shape"):
            return TensorType(dtype)
        shape: list[Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.dim_param not in _UNNAMED:
                shape.append(dims.symbol(dim.dim_param))
            else:
                known = dim.dim_value > 0 or (zero and dim.HasField("dim_value"))
                shape.append(dim.dim_value if known else fresh(name, axis))
        return TensorType(dtype, tuple(shape))
    if kind in ("sequence_type", "optional_type"):
        element = value_type(getattr(proto, kind).elem_type, name, fresh, zero)
        if element is None:
            raise ModelError(f"value {name!r} is a {kind} of unknown element type")
        return SequenceType(element) if kind == "sequence_type" else OptionalType(element)
    raise ModelError(f"value {name!r} is a {kind}, which no operator of the engine takes")


def type_proto(kind: ValueType | None) -> TypeProto:
    """The `TypeProto` of a type; sizes that are expressions become `dim_param`s: their text."""
    proto = TypeProto()
    match kind:
        case TensorType():
            proto.tensor_type.elem_type = kind.dtype.code
            if kind.shape is not None:
                proto.tensor_type.shape.SetInParent()
                for size in kind.shape:
                    dim = proto.tensor_type.shape.dim.add()
                    if isinstance(size, int):
                        dim.dim_value = size
                    elif str(size):
                        dim.dim_param = str(size)
        case SequenceType():
            proto.sequence_type.elem_type.CopyFrom(type_proto(kind.element))
        case OptionalType():
            proto.optional_type.elem_type.CopyFrom(type_proto(kind.element))
    return proto
