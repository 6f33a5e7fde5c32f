"""TopK: the largest or smallest elements along an axis, and where they stand; types of Unique."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from engine.dims import Dim, at_least, ceildiv, dmax, dmin, floordiv, product
from engine.dtypes import INT64, UINT32
from engine.errors import ShapeError
from engine.ir import Shape, TensorType, ValueType
from engine.ops import (
    FLOATS,
    NUMBERS,
    SMALL_INTS,
    InferView,
    KernelCall,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    linear,
    register,
    yes_if,
)
from engine.ops._variants import choose
from engine.ops._work import in_nbytes, in_shape, integers, out_shape
from engine.records import dataclass
from engine.work import CpuWork, GpuWork

CAPACITY = 1024
"""Longest row, or block of one, that a workgroup sorts."""
WORKGROUP = 256
GROUP = 8
"""Elements of which a workgroup finds the order by comparing each with all others."""
FAN = 4
"""Runs that are merged at a time."""
MAX_LEVELS = 9
LONGEST = CAPACITY * FAN**MAX_LEVELS
SORT_TRIPS = 1000
MERGE_TRIPS = (FAN - 1) * 30 + FAN
"""Bounds on the loop iterations of an invocation, whatever the sizes."""

DIGIT_PASSES = 3
FLOAT_COMPARISON = 6
INT_COMPARISON = 4
"""Gathers that take as long as what a sort in NumPy does to an element, once or at each level."""


def _infer(view: InferView) -> list[ValueType]:
    x = view.type(0)
    if x.shape is None:
        return [x, TensorType(INT64)]
    if not x.shape:
        raise ShapeError(f"{view.describe()}: the input must have at least one axis")
    axis = view.axis(len(x.shape), -1)
    known = view.dim_list(1)
    k = known[0] if known else view.fresh("k")
    count = x.shape[axis]
    if isinstance(k, int) and isinstance(count, int) and not 0 <= k <= count:
        raise ShapeError(f"{view.describe()}: k is {k} of {count} elements")
    shape: Shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [TensorType(x.dtype, shape), TensorType(INT64, shape)]


_KEYS = {
    "f32": """
    let bits = bitcast<u32>(value);
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return 0xffffffffu;
    }
    let up = select(size | 0x80000000u, ~bits, bits > 0x80000000u);""",
    "i32": "\n    let up = bitcast<u32>(value) ^ 0x80000000u;",
    "u32": "\n    let up = value;",
}


def _key(kind: str, largest: bool) -> str:
    """`order_key`: a number that is smaller the earlier an element comes; NaN is last."""
    return (
        f"fn order_key(value: {kind}) -> u32 {{{_KEYS[kind]}\n"
        f"    return {'~up' if largest else 'up'};\n}}\n"
    )


@dataclass(frozen=True)
class _Rows:
    """TopK as rows, whose elements stand `inner` apart."""

    rows: Dim
    count: Dim
    k: Dim
    inner: Dim

    @classmethod
    def of(cls, view: NodeView) -> _Rows:
        shape = view.shape(0)
        axis = view.axis(len(shape), -1)
        inner = product(shape[axis + 1 :])
        return cls(product(shape[:axis]) * inner, shape[axis], view.out_shape()[axis], inner)

    @property
    def words(self) -> dict[str, Dim | float]:
        return {"rows": self.rows, "count": self.count, "k": self.k}

    @property
    def share(self) -> Dim:
        """Rows that a workgroup sorts: so many that each invocation has an element or more."""
        found: Dim = 1
        padded = WORKGROUP // 2
        while padded >= GROUP:
            fits = 1 - dmin(1, floordiv(self.count, padded + 1))
            found = found + fits * (WORKGROUP // padded // 2)
            padded //= 2
        return found

    @property
    def blocks(self) -> Dim:
        """Workgroups that sort a long row."""
        return ceildiv(self.count, CAPACITY)

    @property
    def pitch(self) -> Dim:
        """Elements of a long row that are left when its blocks are sorted."""
        return dmin(self.count, self.blocks * dmin(self.k, CAPACITY))

    @property
    def levels(self) -> Dim:
        """How often sorted runs are merged until a row is one."""
        found: Dim = 0
        for level in range(MAX_LEVELS):
            found = found + dmin(1, floordiv(self.count, CAPACITY * FAN**level + 1))
        return found


def _sort(
    view: Lowering,
    found: _Rows,
    tensors: Mapping[str, str],
    groups: Dim,
    words: Mapping[str, Dim | float],
) -> KernelCall:
    """Workgroups that sort rows into outputs, or blocks of rows into keys and places."""
    return KernelCall(
        "selection_top_k",
        {"x": view.node.inputs[0], **tensors},
        {**found.words, "inner": found.inner, **words},
        linear(groups * WORKGROUP, WORKGROUP),
        frozenset({"BLOCKS"} if "keys" in tensors else map(str.upper, tensors)),
        {"KEY": _key(view.dtype(0).wgsl, bool(view.attr("largest", 1)))},
        trips=SORT_TRIPS,
    )


def _merges(view: Lowering, found: _Rows, between: Mapping[str, str]) -> Iterator[Stage]:
    """Merges of the sorted blocks of each row; rows of one block have none, and no workgroups."""
    outputs, levels = _outputs(view), found.levels
    source = {"x": view.node.inputs[0]} if "values" in outputs else {}

    def call(width: Dim, words: Mapping[str, Dim | float]) -> KernelCall:
        return KernelCall(
            "selection_merge",
            between,
            {**found.words, "pitch": found.pitch, "width": width, **words},
            linear(found.rows * width),
            trips=MERGE_TRIPS,
        )

    before = dmax(levels - 1, 0)
    if before != 0:
        yield (replace(call(found.pitch, {}), repeat=before),)
    width = dmin(found.pitch, found.k * FAN) * dmin(1, levels)
    last = call(width, {"inner": found.inner, "level": before})
    flags = frozenset({"FINAL", *map(str.upper, outputs)})
    yield (replace(last, tensors={**between, **source, **outputs}, flags=flags),)


def _outputs(view: Lowering) -> dict[str, str]:
    names = enumerate(("values", "indices"))
    return {name: view.node.outputs[i] for i, name in names if view.wants(i)}


def _lower(view: Lowering) -> Sequence[Stage]:
    found = _Rows.of(view)
    groups = ceildiv(found.rows, found.share)
    whole = _sort(view, found, _outputs(view), groups, {"share": found.share})
    whole = replace(whole, when=(at_least(CAPACITY, found.count),))
    if found.levels == 0:
        return [choose([whole])]
    shape = dmin(2, found.levels), found.rows, found.pitch
    between = {name: view.scratch(UINT32, shape) for name in ("keys", "places")}
    groups, words = found.rows * found.blocks, {"blocks": found.blocks, "pitch": found.pitch}
    blocks = _sort(view, found, between, groups, words)
    return [choose([whole, blocks]), *_merges(view, found, between)]


def _supports(view: NodeView) -> Support:
    found = _Rows.of(view)
    return yes_if(
        at_least(LONGEST, found.count, f"a row has at most {LONGEST} elements"),
        at_least(found.count, found.k, "k is at most the size of the axis"),
    )


def _flops(view: NodeView) -> Dim:
    found = _Rows.of(view)
    return product(view.shape(0)) * 64 + found.rows * found.pitch * found.levels * 64


def _ceil_power(count: int) -> int:
    """The least power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def _sort_loads(count: int, k: int) -> int:
    """Loads of a workgroup that sorts `count` elements: of groups, then a search for each merge."""
    length, padded = GROUP, _ceil_power(max(count, GROUP))
    loads, most = padded * (2 * GROUP + 4), _ceil_power(min(k, padded))
    while length < padded:
        kept = min(most, length)
        loads += padded // length * kept * (kept.bit_length() + 3)
        length *= 2
    return loads


def _merge_loads(count: int, k: int) -> int:
    """Loads for the merges of the sorted blocks of a row."""
    loads, span = 0, CAPACITY
    while span < count:
        kept = min(k, span)
        live = min(count, -(-count // span) * kept)
        loads += live * ((FAN - 1) * kept.bit_length() + 4)
        span *= FAN
    return loads


def _gpu(view: NodeView) -> GpuWork:
    found = _Rows.of(view)
    rows, count, k, levels = integers((found.rows, found.count, found.k, found.levels))
    full, rest = divmod(count, CAPACITY)
    loads = full * _sort_loads(CAPACITY, k) + _sort_loads(rest, k) + _merge_loads(count, k)
    return GpuWork(1 + levels, loads=rows * loads, strided=2 * rows * k)


def _cpu(view: NodeView) -> CpuWork:
    """NumPy sorts whole rows, small integers by their digits; the first k are picked."""
    shape = in_shape(view, 0)
    size, count = prod(shape), shape[view.axis(len(shape), -1)]
    kind = view.dtype(0).name
    if kind in SMALL_INTS:
        each = DIGIT_PASSES
    else:
        each = count.bit_length() * (FLOAT_COMPARISON if kind in FLOATS else INT_COMPARISON)
    picked = prod(out_shape(view))
    return CpuWork(10, passes=(2 * in_nbytes(view, 0),), gathers=each * size + 2 * picked)


register(
    OpDef(
        "TopK",
        10,
        infer=_infer,
        lower=_lower,
        supports=_supports,
        limits="k not known when planning; rows over 2^28 elements",
        dtypes=NUMBERS,
        shape_inputs=(1,),
        scratch=2,
        flops=_flops,
        cpu=_cpu,
        gpu=_gpu,
        tolerance=0.0,
    )
)


def _infer_unique(view: InferView) -> list[ValueType]:
    x, count = view.type(0), view.fresh("unique")
    if x.shape is None:
        return [x, *[TensorType(INT64, (view.fresh("unique"),)) for _ in range(3)]]
    size: Dim = product(x.shape)
    shape: Shape = (count,)
    if view.attr("axis") is not None:
        axis = view.axis(len(x.shape))
        size, shape = x.shape[axis], (*x.shape[:axis], count, *x.shape[axis + 1 :])
    indices, inverse = TensorType(INT64, (count,)), TensorType(INT64, (size,))
    return [TensorType(x.dtype, shape), indices, inverse, indices]


register(OpDef("Unique", 11, infer=_infer_unique))
