"""Products with weights of 4 or 8 bits in blocks, each with a scale: MatMulNBits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Dim, Guard, equal, product
from engine.ir import TensorType, ValueType
from engine.ops import (
    FLOATS,
    YES,
    InferView,
    Lowering,
    NodeView,
    OpDef,
    Stage,
    Support,
    no,
    register,
)
from engine.ops._fit import same
from engine.ops._matmul_calls import product_stage
from engine.ops._matmul_tiles import Packed, Product
from engine.ops.quant import MICROSOFT

_SCALE = """
fn weight_scale(column: u32, k: u32) -> f32 {
    return load_b_scale(column * params.b_blocks + k / params.b_size);
}
"""
_ZEROS = {
    "middle": """
fn weight_zero(column: u32, k: u32) -> f32 {
    return ${MIDDLE};
}
""",
    "float": """
fn weight_zero(column: u32, k: u32) -> f32 {
    return load_b_zero(column * params.b_blocks + k / params.b_size);
}
""",
    "packed4": """
fn weight_zero(column: u32, k: u32) -> f32 {
    let block = k / params.b_size;
    let pair = load_b_zero(column * ((params.b_blocks + 1u) / 2u) + block / 2u);
    return f32((pair >> (4u * (block & 1u))) & 15u);
}
""",
    "packed8": """
fn weight_zero(column: u32, k: u32) -> f32 {
    return f32(load_b_zero(column * params.b_blocks + k / params.b_size));
}
""",
}
_LEVELS = {
    4: """
fn weight(column: u32, k: u32) -> f32 {
    let pair = load_b(column * params.b_row + k / 2u);
    let level = f32((pair >> (4u * (k & 1u))) & 15u);
    return (level - weight_zero(column, k)) * weight_scale(column, k);
}
fn weight4(column: u32, k: u32) -> vec4<f32> {
    let at = column * params.b_row + k / 2u;
    let pairs = vec2<u32>(load_b(at), load_b(at + 1u)).xxyy;
    let levels = vec4<f32>((pairs >> vec4<u32>(0u, 4u, 0u, 4u)) & vec4<u32>(15u));
    return (levels - weight_zero(column, k)) * weight_scale(column, k);
}
""",
    8: """
fn weight(column: u32, k: u32) -> f32 {
    let level = f32(load_b(column * params.b_row + k));
    return (level - weight_zero(column, k)) * weight_scale(column, k);
}
fn weight4(column: u32, k: u32) -> vec4<f32> {
    let levels = vec4<f32>(load4_b(column * params.b_row + k));
    return (levels - weight_zero(column, k)) * weight_scale(column, k);
}
""",
}


def _infer(view: InferView) -> list[ValueType]:
    return [TensorType(view.dtype(0), (*view.shape(0)[:-1], int(view.attr("N"))))]


def _bits(view: NodeView) -> int:
    return int(view.attr("bits", 4))


def _blocks(view: NodeView) -> tuple[int, int]:
    """Elements of a block, and blocks of a column."""
    size = int(view.attr("block_size", 32))
    return size, -(-int(view.attr("K")) // size)


def _supports(view: NodeView) -> Support:
    (size, _), bits = _blocks(view), _bits(view)
    if bits not in _LEVELS:
        return no(f"its kernel takes weights of 4 or 8 bits, not {bits}")
    if size % 16:
        return no(f"blocks of {size} are no multiple of 16")
    if view.has(4):
        return no("its kernel has no g_idx")
    if view.attr("weight_prepacked", 0):
        return no("weight_prepacked is private to one runtime")
    if view.dtype(1).name != "uint8" or not view.dtype(0).is_float:
        return no("its kernel multiplies floats by weights packed in uint8")
    return YES


def _agree(view: NodeView) -> Iterator[Guard]:
    columns, (size, blocks), bits = int(view.attr("N")), _blocks(view), _bits(view)
    levels, points = columns * blocks * size * bits // 8, columns * blocks
    if view.has(3) and view.dtype(3).name == "uint8":
        points = columns * -(-blocks * bits // 8)
    yield from same(view, view.shape(0)[-1], int(view.attr("K")))
    for index, count in {1: levels, 2: columns * blocks, 3: points, 5: columns}.items():
        if view.has(index):
            why = f"input {index} of {view.describe()} has {count} elements"
            yield equal(product(view.shape(index)), count, why)


def _text(view: NodeView) -> str:
    bits, zero = _bits(view), "middle"
    if view.has(3):
        zero = f"packed{bits}" if view.dtype(3).name == "uint8" else "float"
    middle = f"{2 ** (bits - 1)}.0"
    return _SCALE + _ZEROS[zero].replace("${MIDDLE}", middle) + _LEVELS[bits]


def _lower(view: Lowering) -> Sequence[Stage]:
    a, node = view.shape(0), view.node
    columns, (size, blocks) = int(view.attr("N")), _blocks(view)
    tensors = {"b_scale": node.inputs[2]} | ({"b_zero": node.inputs[3]} if view.has(3) else {})
    row = blocks * size * _bits(view) // 8
    words: dict[str, Dim] = {"b_blocks": blocks, "b_size": size, "b_row": row}
    p = Product(
        kind="f32",
        a=node.inputs[0],
        b=node.inputs[1],
        rows=product(a[:-1]),
        columns=columns,
        inner=int(view.attr("K")),
        b_transposed=True,
        c=node.inputs[5] if view.has(5) else "",
        c_strides=(0, 1),
        packed=Packed(_text(view), tensors, words),
    )
    return [product_stage(p, node.outputs[0], view.target)]


register(
    OpDef(
        "MatMulNBits",
        domain=MICROSOFT,
        infer=_infer,
        agree=_agree,
        lower=_lower,
        supports=_supports,
        limits="weights but of 4 and 8 bits; g_idx; weight_prepacked",
        dtypes=FLOATS | {"uint8"},
        epilogue=True,
        flops=lambda view: 2 * product(view.out_shape()) * view.shape(0)[-1],
        tolerance=2e-5,
    )
)
