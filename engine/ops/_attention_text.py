"""Generated text of the attention kernels: value columns, kept in registers, unrolled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

TILE_COLUMNS = 32
"""Value columns of a group in attention.wgsl: four for each of eight invocations."""
ROW_COLUMNS = 64
"""Value columns of a group in attention_row.wgsl: one for each invocation."""


@cache
def tile_text(value_size: int) -> Mapping[str, str]:
    """Fields of attention.wgsl for a number of value columns."""
    groups = range(-(-value_size // TILE_COLUMNS))
    every = [(r, n) for n in groups for r in range(4)]
    add = []
    for n in groups:
        add.append(f"let value{n} = v4(value, column + {TILE_COLUMNS * n}u);")
        add += [f"total{r}_{n} += w[{r}] * value{n};" for r in range(4)]
    return {
        "COLUMNS": _lines(4, (f"var total{r}_{n} = vec4<f32>();" for r, n in every)),
        "RESCALE": _lines(8, (f"total{r}_{n} *= rescale[{r}];" for r, n in every)),
        "ADD": _lines(12, add),
        "FINISH": _lines(
            4,
            (
                f"if (row + {r}u < params.rows) {{ put(query{r}.y, column + {TILE_COLUMNS * n}u, "
                f"total{r}_{n} * factors[{r}]); }}"
                for r, n in every
            ),
        ),
    }


@cache
def row_text(value_size: int) -> Mapping[str, str]:
    """Fields of attention_row.wgsl for a number of value columns."""
    groups = range(-(-value_size // ROW_COLUMNS))
    places = [f"lane + {ROW_COLUMNS * n}u" for n in groups]
    return {
        "COLUMNS": _lines(4, (f"var total{n} = 0.0;" for n in groups)),
        "RESCALE": _lines(8, (f"total{n} *= rescale;" for n in groups)),
        "ADD": _lines(
            12,
            (
                f"total{n} += w * load_v(value + min({place}, params.value_size - 1u));"
                for n, place in enumerate(places)
            ),
        ),
        "FINISH": _lines(
            4,
            (
                f"if ({place} < params.value_size) {{ "
                f"store_y(query.y + {place}, total{n} * factor); }}"
                for n, place in enumerate(places)
            ),
        ),
    }


def _lines(indent: int, lines: Iterable[str]) -> str:
    return "\n".join(" " * indent + line for line in lines)
