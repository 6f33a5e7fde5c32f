"""Cast, CastLike and BitCast."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu_fallback.numeric import element_type
from cpu_fallback.registry import Tensor, cpu_op

_PLAIN = frozenset(
    {"bool", "float16", "float32", "float64", "bfloat16"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@cpu_op("Cast", since=6)
def cast(input: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """`input` in the type that number `to` of TensorProto.DataType names.

    Floats beyond the range of a 32- or 64-bit integer give its nearest end, NaN gives 0;
    integers wrap. Source: ONNX Cast-28.
    """
    dtype = element_type(to)
    if input.dtype.name in _PLAIN and dtype.name in _PLAIN:
        return _plain(input, dtype)
    from cpu_fallback import reference

    attrs: dict[str, object] = {"to": to}
    if dtype.name.startswith("float8"):
        attrs["saturate"] = saturate
        if dtype.name == "float8_e8m0fnu":
            attrs["round_mode"] = round_mode
    return np.asarray(reference.run("Cast", "", 25, attrs, [input], 1)[0])


@cpu_op("CastLike", since=15)
def cast_like(
    input: Tensor, target_type: Tensor, *, saturate: int = 1, round_mode: str = "up"
) -> Tensor:
    """`input` in the element type of `target_type`. Source: ONNX CastLike-25."""
    from cpu_fallback.numeric import ELEMENT_TYPES

    kind = np.dtype(object) if target_type.dtype.kind in "OUS" else target_type.dtype
    number = next(code for code, dtype in ELEMENT_TYPES.items() if dtype == kind)
    return cast(input, to=number, saturate=saturate, round_mode=round_mode)


@cpu_op("BitCast", since=26)
def bit_cast(input: Tensor, *, to: int) -> Tensor:
    """The bits of `input` as another type of the same size. Source: ONNX BitCast-26.

    Raises: ValueError if the sizes differ.
    """
    dtype = element_type(to)
    if input.dtype.name not in _PLAIN or dtype.name not in _PLAIN:
        from cpu_fallback import reference

        return np.asarray(reference.run("BitCast", "", 26, {"to": to}, [input], 1)[0])
    if input.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"BitCast from {input.dtype} to {dtype}, which differ in size")
    return input.reshape(-1).view(dtype).reshape(input.shape).copy()


def _plain(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if x.dtype == dtype:
        return x.copy()
    is_float = x.dtype.kind == "f" or x.dtype.name == "bfloat16"
    if not is_float or dtype.kind not in "iu":
        return np.asarray(x.astype(dtype))
    values = x.astype(np.float64)
    info = np.iinfo(dtype if dtype.itemsize >= 4 else np.int64)
    low, high = float(info.min), float(info.max)
    inside = np.where((values > low) & (values < high), values, 0.0)
    whole = inside.astype(np.uint64 if info.dtype == np.uint64 else np.int64)
    whole[values >= high] = info.max
    whole[values <= low] = info.min
    return np.asarray(whole.astype(dtype))
