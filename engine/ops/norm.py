"""Normalisations: layer, RMS, instance, group, batch, local response, Lp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from engine.dims import Dim, Guard, at_least, ceildiv, divisible, floordiv, product
from engine.dtypes import FLOAT32
from engine.errors import ShapeError
from engine.indexing import IndexMap, broadcast_strides, index_map
from engine.ir import Shape, TensorType, ValueType
from engine.ops import (
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
from engine.ops._fit import alike, fits
from engine.ops._loads import times
from engine.ops._shapes import infer_same
from engine.ops._variants import MAX_TRIPS, choose
from engine.ops._work import FLOAT_NBYTES, SUM_PASSES, in_shape, whole_passes
from engine.ops.reduce import WORKGROUP, lanes_of
from engine.records import dataclass
from engine.work import GpuWork

ROW_LIMIT = MAX_TRIPS // 3 * WORKGROUP


@dataclass(frozen=True)
class _Operand:
    """Scale or bias: how its element for position k of a row is read.

    Attributes:
        wide: expression for the four positions from k on; usable where `wide_if` hold.
        functions: WGSL that the expressions call.
        words: Params words that it reads.
    """

    single: str
    wide: str
    functions: str = ""
    words: tuple[tuple[str, Dim], ...] = ()
    wide_if: tuple[Guard, ...] = ()


def _broadcast_operand(name: str, shape: Shape, onto: Shape, axis: int) -> _Operand:
    """An operand that broadcasts to the tensor, most often to its normalized axes only."""
    in_row = len(shape) <= len(onto) - axis
    place = "k" if in_row else "row * params.count + k"
    sizes = onto[axis:] if in_row else onto
    found: IndexMap = index_map(f"at_{name}", sizes, broadcast_strides(shape, sizes))
    if found.identity:
        return _Operand(f"load_{name}({place})", f"load4_{name}({place})")
    lanes = [
        f"load_{name}({found.name}({place}{plus}))" for plus in ("", " + 1u", " + 2u", " + 3u")
    ]
    wide = f"vec4<f32>({lanes[0] if found.constant else ', '.join(lanes)})"
    return _Operand(lanes[0], wide, found.text, found.params)


def _channel_operand(name: str, groups: Dim, per_group: Dim, spatial: Dim) -> _Operand:
    """An operand with one element a channel; rows are groups of channels."""
    index = "row % params.groups * params.per_group + k / params.spatial"
    load = f"load_{name}({index})"
    words = (("groups", groups), ("per_group", per_group), ("spatial", spatial))
    return _Operand(load, f"vec4<f32>({load})", "", words, (divisible(spatial, 4),))


@dataclass(frozen=True)
class _Problem:
    """Rows of neighbouring elements that are standardized, and what follows."""

    rows: Dim
    count: Dim
    scale: _Operand
    bias: _Operand | None = None


def _channels(view: NodeView, groups: Dim) -> _Problem:
    batch, channels, *rest = view.shape(0)
    spatial = product(rest)
    per_group = floordiv(channels, groups)
    operands = [_channel_operand(name, groups, per_group, spatial) for name in ("scale", "b")]
    return _Problem(batch * groups, per_group * spatial, operands[0], operands[1])


def _problem(view: NodeView) -> _Problem:
    shape = view.shape(0)
    if view.node.op_type == "InstanceNormalization":
        return _channels(view, shape[1])
    if view.node.op_type == "GroupNormalization":
        return _channels(view, int(view.attr("num_groups")))
    axis = view.axis(len(shape), -1)
    bias = _broadcast_operand("b", view.shape(2), shape, axis) if view.has(2) else None
    scale = _broadcast_operand("scale", view.shape(1), shape, axis)
    return _Problem(product(shape[:axis]), product(shape[axis:]), scale, bias)


def _affine(found: _Problem, wide: bool) -> str:
    operands = [found.scale] + ([found.bias] if found.bias else [])
    loads = [o.wide if wide else o.single for o in operands]
    kind = "vec4<f32>" if wide else "f32"
    value = " + ".join([f"v * {loads[0]}", *loads[1:]])
    entry = f"fn affine{'4' if wide else ''}(v: {kind}, row: u32, k: u32) -> {kind}"
    functions = [o.functions for o in operands if o.functions]
    return "\n".join([*functions, f"{entry} {{ return {value}; }}"])


def _lower(view: Lowering) -> Sequence[Stage]:
    found, node = _problem(view), view.node
    operands = [found.scale] + ([found.bias] if found.bias else [])
    words = dict(word for o in operands for word in o.words)
    flags = {"RMS"} if node.op_type == "RMSNormalization" else set()
    tensors = {"x": node.inputs[0], "scale": node.inputs[1], "y": node.outputs[0]}
    if found.bias is not None:
        tensors["b"] = node.inputs[2]
        flags.add("BIAS")
    for index, name in ((1, "mean"), (2, "inv_std_dev")):
        if view.wants(index):
            tensors[name] = node.outputs[index]
            flags.add(name.upper())

    def call(lanes: int, wide: bool, *when: Guard) -> KernelCall:
        width = (4 if wide else 1) * lanes
        vectors = (divisible(found.count, 4), *(g for o in operands for g in o.wide_if))
        return KernelCall(
            "norm_workgroup" if lanes > 1 else "norm",
            tensors,
            {
                "rows": found.rows,
                "count": found.count,
                "epsilon": float(view.attr("epsilon", 1e-5)),
                **words,
            },
            linear(found.rows * lanes, WORKGROUP),
            frozenset(flags | ({"VEC4"} if wide else set())),
            {"AFFINE": _affine(found, wide)},
            extra_params=tuple((name, "u32") for name in words),
            overrides={"LANES": lanes} if lanes > 1 else {},
            trips=ceildiv(found.count, width) * 3,
            when=(*vectors, *when) if wide else when,
        )

    orders = lanes_of(found.rows, found.count, True, view.target)
    return [choose([call(lanes, wide, *when) for lanes, when in orders for wide in (True, False)])]


def _supports(view: NodeView) -> Support:
    shape = view.shape(0)
    if view.node.op_type == "InstanceNormalization" and len(shape) < 2:
        return no("its input has no channels")
    guards = [at_least(ROW_LIMIT, _problem(view).count, f"a row has at most {ROW_LIMIT} elements")]
    if view.node.op_type == "GroupNormalization":
        guards.append(divisible(shape[1], int(view.attr("num_groups"))))
    return yes_if(*guards)


def _infer_layer(view: InferView) -> Sequence[ValueType]:
    kind = view.type(0)
    if kind.shape is None:
        statistics = TensorType(FLOAT32)
    else:
        axis = view.axis(len(kind.shape), -1)
        kept = kind.shape[:axis] + (1,) * (len(kind.shape) - axis)
        stash = FLOAT32 if view.attr("stash_type", 1) == 1 else kind.dtype
        statistics = TensorType(stash, kept)
    return [kind, statistics, statistics][: len(view.node.outputs)]


def _infer_rms(view: InferView) -> Sequence[ValueType]:
    return [TensorType(view.dtype(1), view.type(0).shape)]


def _flops(view: NodeView) -> Dim:
    return product(view.shape(0)) * 8


def _gpu(view: NodeView) -> GpuWork:
    """Loads for the mean, the variance and the result."""
    count = prod(in_shape(view, 0))
    return GpuWork(1, loads=3 * count, ops=8 * count, nbytes=count * FLOAT_NBYTES)


def _agree_elements(view: NodeView) -> Iterator[Guard]:
    """Scale and bias broadcast to the tensor, and do not make it larger."""
    for index in (1, 2):
        if view.has(index):
            yield from fits(view, view.shape(index), view.shape(0))


def _agree_channels(view: NodeView) -> Iterator[Guard]:
    """One number for each channel, in all inputs but the first."""
    for index in range(1, len(view.node.inputs)):
        yield from alike(view, view.shape(index), view.shape(0)[1:2])


for _op, _since, _infer, _agree in (
    ("LayerNormalization", 17, _infer_layer, _agree_elements),
    ("RMSNormalization", 23, _infer_rms, _agree_elements),
    ("InstanceNormalization", 6, infer_same, _agree_channels),
    ("GroupNormalization", 21, infer_same, _agree_channels),
):
    register(
        OpDef(
            _op,
            since=_since,
            infer=_infer,
            agree=_agree,
            lower=_lower,
            supports=_supports,
            limits="rows over a loop's length; groups that do not divide the channels",
            loads=times(3),
            epilogue=True,
            flops=_flops,
            cpu=lambda view: whole_passes(view, 14, 2 * SUM_PASSES + 4, 4),
            gpu=_gpu,
        )
    )


def _spatial(shape: Shape) -> tuple[Dim, Dim]:
    """Channels and elements a channel of [N, C, ...]; one channel if there is no axis for it."""
    return (shape[1], product(shape[2:])) if len(shape) > 1 else (1, product(shape))


def _infer_batch(view: InferView) -> Sequence[ValueType]:
    return [view.type(i) for i in (0, 3, 4)][: len(view.node.outputs)]


def _lower_batch(view: Lowering) -> Sequence[Stage]:
    shape, node = view.shape(0), view.node
    channels, spatial = _spatial(shape)
    size = product(shape)
    names = ("x", "scale", "b", "input_mean", "input_var")
    tensors = {**dict(zip(names, node.inputs, strict=True)), "y": node.outputs[0]}
    epsilon = float(view.attr("epsilon", 1e-5))
    words = {"size": size, "channels": channels, "spatial": spatial, "epsilon": epsilon}
    calls = [
        KernelCall(
            "norm_batch",
            tensors,
            words,
            linear(ceildiv(size, width), WORKGROUP),
            frozenset({"VEC4"}) if width == 4 else frozenset(),
            when=(divisible(spatial, 4),) if width == 4 else (),
        )
        for width in (4, 1)
    ]
    return [choose(calls)]


def _supports_batch(view: NodeView) -> Support:
    if view.attr("training_mode", 0):
        return no("statistics of training are computed on the CPU only")
    return yes_if()


register(
    OpDef(
        "BatchNormalization",
        since=9,
        infer=_infer_batch,
        agree=_agree_channels,
        lower=_lower_batch,
        supports=_supports_batch,
        limits="training",
        epilogue=True,
        flops=lambda view: product(view.shape(0)) * 4,
        cpu=lambda view: whole_passes(view, 10, 2, 2),
    )
)


def _lower_lrn(view: Lowering) -> Sequence[Stage]:
    shape, size = view.shape(0), int(view.attr("size"))
    channels, spatial = _spatial(shape)
    beta, count = float(view.attr("beta", 0.75)), product(shape)
    flags = {"ROOTS"} if beta == 0.75 else set()

    def call(wide: bool) -> KernelCall:
        return KernelCall(
            "norm_lrn",
            {"x": view.node.inputs[0], "y": view.node.outputs[0]},
            {
                "size": count,
                "channels": channels,
                "spatial": spatial,
                "before": (size - 1) // 2,
                "after": size // 2,
                "alpha": float(view.attr("alpha", 1e-4)) / size,
                "beta": beta,
                "bias": float(view.attr("bias", 1.0)),
            },
            linear(ceildiv(count, 4) if wide else count, WORKGROUP),
            frozenset(flags | ({"VEC4"} if wide else set())),
            trips=size,
            when=(divisible(spatial, 4),) if wide else (),
        )

    return [choose([call(True), call(False)])]


register(
    OpDef(
        "LRN",
        since=1,
        infer=infer_same,
        lower=_lower_lrn,
        epilogue=True,
        flops=lambda view: product(view.shape(0)) * (2 * int(view.attr("size")) + 40),
        cpu=lambda view: whole_passes(view, 12, 4 + 2 * int(view.attr("size")), 4, functions=1),
    )
)


def _lp_rows(view: NodeView) -> tuple[Dim, Dim, Dim]:
    shape = view.shape(0)
    axis = view.axis(len(shape), -1)
    if not shape:
        raise ShapeError(f"{view.describe()}: a scalar has no axis")
    stride = product(shape[axis + 1 :])
    return product(shape[:axis]) * stride, shape[axis], stride


def _lower_lp(view: Lowering) -> Sequence[Stage]:
    rows, count, stride = _lp_rows(view)
    call = KernelCall(
        "norm_lp",
        {"input": view.node.inputs[0], "output": view.node.outputs[0]},
        {"rows": rows, "count": count, "stride": stride},
        linear(rows, WORKGROUP),
        frozenset({"ONE"}) if view.attr("p", 2) == 1 else frozenset(),
        trips=count * 2,
    )
    return [(call,)]


def _supports_lp(view: NodeView) -> Support:
    limit = MAX_TRIPS // 2
    return yes_if(at_least(limit, _lp_rows(view)[1], f"a row has at most {limit} elements"))


register(
    OpDef(
        "LpNormalization",
        since=1,
        infer=infer_same,
        lower=_lower_lp,
        supports=_supports_lp,
        limits="rows over a loop's length",
        epilogue=True,
        flops=lambda view: product(view.shape(0)) * 4,
    )
)
