"""The operators of ai.onnx.ml on maps and categories that onnx.reference lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpu_fallback.registry import Tensor, cpu_op

DOMAIN = "ai.onnx.ml"


@cpu_op("ZipMap", since=1, domain=DOMAIN)
def zip_map(
    x: Tensor,
    *,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
) -> list[dict[Any, Any]]:
    """One map from class label to value (float32) for each row of `x` ([N, C] or [C]).

    Raises: ValueError unless one list of labels, of length C, is given. Source: ZipMap-1.
    """
    labels = list(classlabels_strings or classlabels_int64s or ())
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if bool(classlabels_strings) == bool(classlabels_int64s) or len(labels) != rows.shape[1]:
        raise ValueError(f"ZipMap with {len(labels)} labels for {rows.shape[1]} columns")
    return [dict(zip(labels, row, strict=True)) for row in rows]


@cpu_op("CastMap", since=1, domain=DOMAIN)
def cast_map(
    x: Mapping[int, Any],
    *,
    cast_to: str = "TO_FLOAT",
    map_form: str = "DENSE",
    max_map: int = 1,
) -> Tensor:
    """Values of a map with int64 keys, in the order of its keys: [1, count].

    map_form SPARSE: [1, max_map], the keys are positions, the rest 0 or "".

    Raises: ValueError for an unknown form or type, or a key out of range. Source: CastMap-1.
    """
    types = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}
    if cast_to not in types or map_form not in ("DENSE", "SPARSE"):
        raise ValueError(f"CastMap with cast_to {cast_to!r} and map_form {map_form!r}")
    convert: Any = {"TO_FLOAT": float, "TO_INT64": int, "TO_STRING": str}[cast_to]
    keys = sorted(x)
    if map_form == "DENSE":
        return np.array([[convert(x[key]) for key in keys]], dtype=types[cast_to])
    if keys and not 0 <= keys[0] <= keys[-1] < max_map:
        raise ValueError(f"CastMap: keys {keys[0]} to {keys[-1]} for max_map {max_map}")
    result = np.full((1, max_map), "" if cast_to == "TO_STRING" else 0, dtype=types[cast_to])
    for key in keys:
        result[0, key] = convert(x[key])
    return result


@cpu_op("CategoryMapper", since=1, domain=DOMAIN)
def category_mapper(
    x: Tensor,
    *,
    cats_int64s: Sequence[int],
    cats_strings: Sequence[str],
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Tensor:
    """Strings to the int64 paired with them, or int64 to strings; same shape.

    Raises: ValueError if the lists differ in length. Source: CategoryMapper-1.
    """
    if len(cats_int64s) != len(cats_strings):
        raise ValueError(f"{len(cats_int64s)} numbers for {len(cats_strings)} strings")
    table: dict[Any, Any]
    if x.dtype.kind in "OUS":
        table = dict(zip(cats_strings, cats_int64s, strict=True))
        found = [table.get(str(value), default_int64) for value in x.reshape(-1)]
        return np.array(found, np.int64).reshape(x.shape)
    table = dict(zip(cats_int64s, cats_strings, strict=True))
    names = [table.get(int(value), default_string) for value in x.reshape(-1)]
    return np.array(names, object).reshape(x.shape)
