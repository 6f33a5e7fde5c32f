"""DType: the one table from ONNX element codes to NumPy types and WGSL element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from engine.records import dataclass


@dataclass(frozen=True)
class DType:
    """An ONNX element type.

    Attributes:
        name: the ONNX name in lower case, such as "float32" or "int64".
        code: `onnx.TensorProto.DataType` value.
        numpy: the NumPy dtype of host arrays.
        wgsl: the type a kernel computes with ("f32", "i32", "u32", "bool"), or "" where no
            kernel does. int64 counts as "i32": the range is proven or checked on upload.
        narrow: for types of less than 32 bits that kernels widen to `wgsl` when they load them,
            the name of the format ("f16", "i8", ...; see `shaders/lib/narrow_*.wgsl`), else "".
    """

    name: str
    code: int
    numpy: np.dtype
    wgsl: str = ""
    narrow: str = ""

    @property
    def packing(self) -> int:
        """Elements that fit a 32-bit word on the GPU."""
        return 4 // self.nbytes if self.narrow else 1

    @property
    def nbytes(self) -> int:
        """Bytes per element in a host array."""
        return int(self.numpy.itemsize)

    @property
    def limits(self) -> tuple[int, int]:
        """Least and greatest value of an integer type."""
        bits = int(self.name.removeprefix("u").removeprefix("int"))
        if self.name.startswith("u"):
            return 0, (1 << bits) - 1
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    @property
    def is_float(self) -> bool:
        return self.name.startswith(("float", "bfloat"))

    @property
    def is_integer(self) -> bool:
        return self.name.startswith(("int", "uint"))

    def __repr__(self) -> str:
        return self.name


def _dtype(name: str, code: int, numpy: object, wgsl: str = "", narrow: str = "") -> DType:
    return DType(name, code, np.dtype(numpy), wgsl, narrow)  # type: ignore[call-overload]


FLOAT32 = _dtype("float32", 1, np.float32, "f32")
UINT8 = _dtype("uint8", 2, np.uint8, "u32", "u8")
INT8 = _dtype("int8", 3, np.int8, "i32", "i8")
UINT16 = _dtype("uint16", 4, np.uint16, "u32", "u16")
INT16 = _dtype("int16", 5, np.int16, "i32", "i16")
INT32 = _dtype("int32", 6, np.int32, "i32")
INT64 = _dtype("int64", 7, np.int64, "i32")
STRING = _dtype("string", 8, np.object_)
BOOL = _dtype("bool", 9, np.bool_, "bool")
FLOAT16 = _dtype("float16", 10, np.float16, "f32", "f16")
FLOAT64 = _dtype("float64", 11, np.float64)
UINT32 = _dtype("uint32", 12, np.uint32, "u32")
UINT64 = _dtype("uint64", 13, np.uint64)
COMPLEX64 = _dtype("complex64", 14, np.complex64)
COMPLEX128 = _dtype("complex128", 15, np.complex128)
BFLOAT16 = _dtype("bfloat16", 16, ml_dtypes.bfloat16, "f32", "bf16")

DTYPES: tuple[DType, ...] = (
    FLOAT32,
    UINT8,
    INT8,
    UINT16,
    INT16,
    INT32,
    INT64,
    STRING,
    BOOL,
    FLOAT16,
    FLOAT64,
    UINT32,
    UINT64,
    COMPLEX64,
    COMPLEX128,
    BFLOAT16,
    _dtype("float8e4m3fn", 17, ml_dtypes.float8_e4m3fn),
    _dtype("float8e4m3fnuz", 18, ml_dtypes.float8_e4m3fnuz),
    _dtype("float8e5m2", 19, ml_dtypes.float8_e5m2),
    _dtype("float8e5m2fnuz", 20, ml_dtypes.float8_e5m2fnuz),
    _dtype("uint4", 21, ml_dtypes.uint4, "u32", "u4"),
    _dtype("int4", 22, ml_dtypes.int4, "i32", "i4"),
    _dtype("float4e2m1", 23, ml_dtypes.float4_e2m1fn),
    _dtype("float8e8m0", 24, ml_dtypes.float8_e8m0fnu),
    _dtype("uint2", 25, ml_dtypes.uint2, "u32", "u2"),
    _dtype("int2", 26, ml_dtypes.int2, "i32", "i2"),
)

_BY_CODE = {d.code: d for d in DTYPES}
_BY_NAME = {d.name: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}


def from_code(code: int) -> DType:
    """DType of an `onnx.TensorProto.DataType` value. Raises: KeyError if it is unknown."""
    return _BY_CODE[code]


def from_name(name: str) -> DType:
    """DType of an ONNX name in lower case. Raises: KeyError if it is unknown."""
    return _BY_NAME[name]


def from_numpy(dtype: np.dtype) -> DType:
    """DType of a NumPy dtype (all kinds of text are ONNX strings). Raises: KeyError."""
    found = _BY_NUMPY.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "OUST":
        return STRING
    return _BY_NUMPY[dtype.newbyteorder("=")]
