"""Attention and rotary embedding.

The kernels never store the scores. One computes tiles of queries and keys; the other, for few
queries, takes a workgroup for each and shares the keys among its invocations. Query heads that
share a key head are rows of one problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Dim, Guard, at_least, ceildiv, divisible, product
from engine.errors import ShapeError
from engine.indexing import broadcast_strides
from engine.ir import Shape, TensorType, ValueType
from engine.ops import (
    FLOATS,
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
    yes_if,
)
from engine.ops._attention_text import PARTS, Tile, row_text, tile_text
from engine.ops._fit import alike, fits, same
from engine.ops._shapes import infer_same
from engine.ops._variants import MAX_TRIPS, choose
from engine.records import dataclass

MAX_VALUE_SIZE = 256
FEW_ROWS = 8
"""Rows that share a key head below which each gets a workgroup."""
TILE = Tile(4, 4, 8)
"""Workgroups of 64 fill the waves of every GPU, and two of them fit its registers."""
SOFTWARE_TILES = ((64, Tile(8, 4, 8)), (MAX_VALUE_SIZE, TILE))
"""Up to which value size software holds a tile in registers."""
TILE_KEYS = 32
ROW_KEYS = 256
UNBOUNDED = 1 << 30

Q, K, V, MASK, PAST_KEY, PAST_VALUE, VALID = range(7)


@dataclass(frozen=True)
class Heads:
    """[batch, heads, length, size], or [batch, length, heads * size] if `packed`."""

    batch: Dim
    heads: Dim
    length: Dim
    size: Dim
    packed: bool

    @property
    def strides(self) -> tuple[Dim, Dim, Dim]:
        """Elements from batch entry, head and row to the next."""
        step = self.length * self.heads * self.size
        if self.packed:
            return step, self.size, self.heads * self.size
        return step, self.length * self.size, self.size

    @property
    def shape(self) -> Shape:
        """With heads before the length, as caches lie."""
        return (self.batch, self.heads, self.length, self.size)


def heads_of(view: NodeView, index: int, attribute: str) -> Heads:
    """Input `index`, split into heads. Raises: ShapeError if that cannot be."""
    shape = view.shape(index)
    if len(shape) == 4:
        batch, heads, length, size = shape
        return Heads(batch, heads, length, size, False)
    count = int(view.attr(attribute) or 0)
    if len(shape) != 3 or count < 1:
        raise ShapeError(f"{view.describe()}: input {index} cannot be split into {count} heads")
    width = shape[2]
    if isinstance(width, int) and width % count:
        raise ShapeError(f"{view.describe()}: {width} columns cannot be split into {count} heads")
    return Heads(shape[0], count, shape[1], width // count, True)


def _operands(view: NodeView) -> tuple[Heads, Heads, Heads]:
    q = heads_of(view, Q, "q_num_heads")
    return q, heads_of(view, K, "kv_num_heads"), heads_of(view, V, "kv_num_heads")


def _infer(view: InferView) -> Sequence[ValueType]:
    q, k, v = _operands(view)
    dtype = view.dtype(Q)
    keys = k.length + (view.shape(PAST_KEY)[2] if view.has(PAST_KEY) else 0)
    values = v.length + (view.shape(PAST_VALUE)[2] if view.has(PAST_VALUE) else 0)
    y: Shape = (q.batch, q.heads, q.length, v.size)
    if q.packed:
        y = (q.batch, q.length, q.heads * v.size)
    types = [
        TensorType(dtype, y),
        TensorType(view.dtype(K), (k.batch, k.heads, keys, k.size)),
        TensorType(view.dtype(V), (v.batch, v.heads, values, v.size)),
        TensorType(dtype, (q.batch, q.heads, q.length, keys)),
    ]
    return types[: len(view.node.outputs)]


def _refusal(view: NodeView) -> str:
    """Why the kernels cannot compute a node, in words; "" if they can."""
    if view.wants(3):
        return "it returns its scores, which the kernels never store"
    if view.has(PAST_KEY) or view.wants(1) or view.wants(2):
        return "its cache is not split off into a Concat"
    if view.attr("softmax_precision") not in (None, 1):
        return "its softmax rounds to another type than float32"
    if any(not view.dtype(i).is_float for i in (Q, K, V)):
        return "its kernels compute in float32"
    if view.has(MASK) and not (view.dtype(MASK).is_float or view.dtype(MASK).name == "bool"):
        return f"its kernels take masks of floats and bool, not {view.dtype(MASK)}"
    q, k, v = _operands(view)
    for name, value in (("heads", q.heads), ("key heads", k.heads)):
        if not isinstance(value, int):
            return f"the number of {name} is not known when planning"
    if not isinstance(q.size, int) or not isinstance(v.size, int):
        return "the size of its heads is not known when planning"
    if int(k.heads) < 1 or int(q.heads) % int(k.heads):  # type: ignore[arg-type]
        return f"{q.heads} query heads are no multiple of {k.heads} key heads"
    if not 1 <= v.size <= MAX_VALUE_SIZE or not 1 <= q.size <= 4 * MAX_VALUE_SIZE:
        return f"heads of size {q.size} and {v.size} are out of the range of its kernels"
    return _mask_refusal(view, q)


def _mask_refusal(view: NodeView, q: Heads) -> str:
    if not view.has(MASK):
        return ""
    shape = view.shape(MASK)
    target = (q.batch, q.heads, q.length)
    if not 1 <= len(shape) <= 4:
        return f"a mask of rank {len(shape)} is not known"
    for dim, other in zip(reversed(shape[:-1]), reversed(target), strict=False):
        if isinstance(dim, int) and isinstance(other, int) and dim not in (1, other):
            return f"its mask {shape} does not broadcast to its scores"
    return ""


def _supports(view: NodeView) -> Support:
    reason = _refusal(view)
    if reason:
        return no(reason)
    _, k, _ = _operands(view)
    tiles = ((TILE_KEYS, _tile_trips(k.size, False)), (ROW_KEYS, _tile_trips(k.size, True)))
    most = min(MAX_TRIPS // int(trips) * keys for keys, trips in tiles)  # type: ignore[arg-type]
    return yes_if(at_least(most, k.length, f"there are at most {most} keys"))


def _tile_trips(size: Dim, few: bool) -> Dim:
    """Loop iterations of an invocation for one tile of keys."""
    products = ceildiv(size, 4)
    return ROW_KEYS + ROW_KEYS // 64 * (products + 3) + 32 if few else TILE_KEYS + products + 12


def _words(view: NodeView) -> tuple[dict[str, Dim | float], dict[str, str], set[str]]:
    """Words that only some nodes have, with their kinds, and the flags that go with them."""
    words: dict[str, Dim | float] = {}
    kinds: dict[str, str] = {}
    flags: set[str] = set()
    q = heads_of(view, Q, "q_num_heads")
    if view.has(MASK):
        shape = view.shape(MASK)
        flags |= {"MASK"} | ({"BOOLEAN"} if view.dtype(MASK).name == "bool" else set())
        onto = (q.batch, q.heads, q.length, shape[-1])
        strides = broadcast_strides(shape, onto)
        names = ("mask_batch", "mask_head", "mask_row")
        words |= dict(zip(names, strides[:3], strict=True)) | {"mask_keys": shape[-1]}
        kinds |= dict.fromkeys((*names, "mask_keys"), "u32")
    left = int(view.attr("left_window_size", -1))
    right = 0 if view.attr("is_causal", 0) else int(view.attr("right_window_size", -1))
    if left >= 0 or right >= 0:
        flags.add("WINDOW")
        words |= {"left": min(left, UNBOUNDED) if left >= 0 else UNBOUNDED}
        words |= {"right": min(right, UNBOUNDED) if right >= 0 else UNBOUNDED}
        kinds |= {"left": "i32", "right": "i32"}
    if float(view.attr("softcap", 0.0)) > 0:
        flags.add("SOFTCAP")
        words["softcap"] = float(view.attr("softcap"))
        kinds["softcap"] = "f32"
    if view.has(VALID):
        flags.add("VALID")
    return words, kinds, flags


def _lower(view: Lowering) -> Sequence[Stage]:
    q, k, v = _operands(view)
    groups = int(q.heads) // int(k.heads)  # type: ignore[arg-type]
    value_size, size = int(v.size), int(q.size)  # type: ignore[arg-type]
    y = Heads(q.batch, q.heads, q.length, v.size, q.packed)
    scale = view.attr("scale")
    words, kinds, flags = _words(view)
    words |= {
        "rows": q.length * groups,
        "queries": q.length,
        "keys": k.length,
        "size": size,
        "value_size": value_size,
        "groups": groups,
        "scale": float(size**-0.5 if scale is None else scale),
    }
    for name, operand in (("q", q), ("k", k), ("v", v), ("y", y)):
        places = (f"{name}_batch", f"{name}_head", f"{name}_stride")
        words |= dict(zip(places, operand.strides, strict=True))
    names = {Q: "q", K: "k", V: "v", MASK: "attn_mask", VALID: "nonpad_kv_seqlen"}
    tensors = {name: view.node.inputs[i] for i, name in names.items() if view.has(i)}
    tensors["y"] = view.node.outputs[0]
    if size % 4 == 0:
        flags.add("VEC4")

    tile = TILE
    if view.target.software:
        tile = next(tile for most, tile in SOFTWARE_TILES if value_size <= most)

    def call(few: bool) -> KernelCall:
        rows = q.length * groups
        tiles = ceildiv(k.length, ROW_KEYS if few else TILE_KEYS)
        wide = {"WIDE"} if value_size % 4 == 0 and not few else set()
        return KernelCall(
            "attention_row" if few else "attention",
            tensors,
            words,
            (rows if few else ceildiv(rows, tile.all_rows), k.heads, q.batch),
            frozenset(flags | wide),
            row_text(value_size) if few else tile_text(tile, value_size),
            {} if few else {"WORKGROUP_SIZE": tile.stacks * PARTS},
            extra_params=tuple(kinds.items()),
            trips=tiles * _tile_trips(size, few) + 16,
            when=(at_least(FEW_ROWS - 1, rows),) if few else (),
        )

    return [choose([call(True), call(False)])]


def _flops(view: NodeView) -> Dim:
    q, k, v = _operands(view)
    return 2 * q.batch * q.heads * q.length * k.length * (q.size + v.size + 16)


def _agree(view: NodeView) -> Iterator[Guard]:
    """Heads that are multiplied are alike, and a mask is no wider than there are keys."""
    q, k = heads_of(view, Q, "q_num_heads"), heads_of(view, K, "kv_num_heads")
    v, keys = heads_of(view, V, "kv_num_heads"), k.length
    yield from alike(view, (q.batch, q.size), (k.batch, k.size))
    yield from alike(view, (k.batch, k.heads, k.length), (v.batch, v.heads, v.length))
    if isinstance(k.heads, int) and k.heads > 0:
        yield divisible(q.heads, k.heads, f"{k.heads} divides the heads of {view.describe()}")
    if view.has(PAST_KEY):
        past = view.shape(PAST_KEY)[2]
        keys = keys + past
        yield from alike(view, view.shape(PAST_KEY), (k.batch, k.heads, past, k.size))
        yield from alike(view, view.shape(PAST_VALUE), (v.batch, v.heads, past, v.size))
    if view.has(MASK):
        mask = view.shape(MASK)
        yield from fits(view, mask[:-1], (q.batch, q.heads, q.length))
        why = f"a mask of {mask[-1]} is no wider than {keys} keys in {view.describe()}"
        yield at_least(keys, mask[-1], why)
    if view.has(VALID):
        yield from alike(view, view.shape(VALID), (q.batch,))


register(
    OpDef(
        "Attention",
        since=23,
        infer=_infer,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="scores as an output; a cache that is not split off into a Concat; "
        "heads of unknown size, or of more than 256 values",
        dtypes=FLOATS | {"bool", "int64"},
        flops=_flops,
        tolerance=5e-6,
    )
)


def _rotated(view: NodeView) -> tuple[Heads, Dim]:
    """The operand and half of what is rotated of each head."""
    x = heads_of(view, 0, "num_heads")
    dim = int(view.attr("rotary_embedding_dim", 0)) or x.size
    return x, dim // 2


def _lower_rotary(view: Lowering) -> Sequence[Stage]:
    x, half = _rotated(view)
    elements = product(view.shape(0))
    flags = {"INTERLEAVED"} if view.attr("interleaved", 0) else set()
    tensors = dict(zip(("x", "cos_cache", "sin_cache"), view.node.inputs[:3], strict=True))
    if view.has(3):
        tensors["position_ids"] = view.node.inputs[3]
        flags.add("POSITIONS")
    tensors["y"] = view.node.outputs[0]
    words: dict[str, Dim | float] = {
        "elements": elements,
        "heads": x.heads,
        "length": x.length,
        "size": x.size,
        "half_size": half,
        "positions": view.shape(1)[0],
        "heads_first": int(not x.packed),
    }
    return [(KernelCall("attention_rotary", tensors, words, linear(elements), frozenset(flags)),)]


def _supports_rotary(view: NodeView) -> Support:
    _, half = _rotated(view)
    wanted = 2 if view.has(3) else 3
    for index in (1, 2):
        if not view.dtype(index).is_float or len(view.shape(index)) != wanted:
            return no(f"its cache has the type {view.type(index)}, where rank {wanted} is needed")
    return yes_if(at_least(half, 1, "something is rotated"))


def _agree_rotary(view: NodeView) -> Iterator[Guard]:
    """Caches are alike, with a column for each pair that is rotated of a head, and positions or
    rows of caches are given for each entry of the batch."""
    x, cos = heads_of(view, 0, "num_heads"), view.shape(1)
    rotated = int(view.attr("rotary_embedding_dim", 0)) or x.size
    yield at_least(x.size, rotated, f"{view.describe()} rotates {rotated} of a head of {x.size}")
    yield from same(view, cos[-1] * 2, rotated)
    yield from alike(view, cos, view.shape(2))
    rows = view.shape(3) if view.has(3) else cos[:2]
    yield from alike(view, rows, (x.batch, x.length))


register(
    OpDef(
        "RotaryEmbedding",
        since=23,
        infer=infer_same,
        agree=_agree_rotary,
        lower=_lower_rotary,
        supports=_supports_rotary,
        limits="caches of other rank",
        dtypes=FLOATS | {"int64", "int32"},
        epilogue=True,
        flops=lambda view: product(view.shape(0)) * 4,
    )
)
