"""GridSample, AffineGrid and RoiAlign: feature maps sampled between their pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.dims import Dim, Guard, at_least, equal, product
from engine.errors import ShapeError
from engine.ir import TensorType, ValueType
from engine.ops import (
    YES,
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
from engine.ops._fit import alike

_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
_PADDINGS = ("zeros", "border", "reflection")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _taps(view: NodeView) -> int | None:
    """Pixels along each axis that a sample is made of."""
    return _TAPS.get(_text(view.attr("mode", "linear")))


def _infer_grid_sample(view: InferView) -> list[ValueType]:
    x, grid = view.type(0), view.type(1)
    if x.shape is None or grid.shape is None:
        return [TensorType(x.dtype)]
    if len(x.shape) != len(grid.shape) or len(x.shape) < 3:
        raise ShapeError(f"{view.describe()}: input and grid must be of one rank, at least 3")
    return [TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]


def _supports_grid_sample(view: NodeView) -> Support:
    if _taps(view) is None or _text(view.attr("padding_mode", "zeros")) not in _PADDINGS:
        return no("its mode or padding mode is unknown")
    if len(view.shape(0)) > 5:
        return no("kernels have at most three spatial axes")
    return YES


def _corner_lines(rank: int, taps: int) -> tuple[str, str]:
    """WGSL that reads the coordinates of a sample, and that finds the pixel number `corner`."""
    reads, finds = [], []
    for axis in range(rank):
        size = f"params.size{axis}"
        reads += [
            f"let p{axis} = coordinate(load_grid(point + {rank - 1 - axis}u), {size});",
            f"let b{axis} = floor(p{axis});",
        ]
        digit = f"(corner / {taps**axis}u) % {taps}u"
        finds += [
            f"let d{axis} = {digit};",
            f"let i{axis} = b{axis} + offset(d{axis});",
            f"let w{axis} = weight * tap_weight(p{axis} - b{axis}, d{axis});",
            f"weight = select(0.0, w{axis}, counts(i{axis}, {size}) != 0.0);",
            f"position = position * {size} + pixel(i{axis}, {size});",
        ]
    return "\n".join("    " + r for r in reads), "\n".join("        " + f for f in finds)


def _lower_grid_sample(view: Lowering) -> Sequence[Stage]:
    x, out = view.shape(0), view.out_shape()
    rank, taps = len(x) - 2, _taps(view) or 2
    reads, finds = _corner_lines(rank, taps)
    words: dict[str, Dim | float] = {f"size{axis}": d for axis, d in enumerate(x[2:])}
    padding = _text(view.attr("padding_mode", "zeros")).upper()
    flags = {padding, {1: "NEAREST", 2: "LINEAR", 4: "CUBIC"}[taps]} - {"ZEROS", "LINEAR"}
    if view.attr("align_corners", 0):
        flags.add("ALIGN")
    call = KernelCall(
        "spatial_sample",
        {"x": view.node.inputs[0], "grid": view.node.inputs[1], "y": view.node.outputs[0]},
        {
            "size": product(out),
            "channels": x[1],
            "pixels": product(x[2:]),
            "points": product(out[2:]),
            **words,
        },
        linear(product(out)),
        flags=frozenset(flags),
        text={"READS": reads, "FINDS": finds, "RANK": f"{rank}u", "CORNERS": f"{taps**rank}u"},
        extra_params=tuple((name, "u32") for name in words),
        trips=taps**rank,
    )
    return [(call,)]


def _grid_sample_flops(view: NodeView) -> Dim:
    corners = int((_taps(view) or 2) ** (len(view.shape(0)) - 2))
    return product(view.out_shape()) * (corners * 12 + 20)


def _infer_affine_grid(view: InferView) -> list[ValueType]:
    theta, size = view.type(0), view.dim_list(1)
    if theta.shape is None or len(theta.shape) != 3:
        return [TensorType(theta.dtype)]
    rank = theta.shape[1] if size is None else len(size) - 2
    if not isinstance(rank, int):
        return [TensorType(theta.dtype)]
    if size is None:
        size = [view.fresh("size") for _ in range(rank + 2)]
    if theta.shape[1] != rank and isinstance(theta.shape[1], int):
        raise ShapeError(
            f"{view.describe()}: a size of {len(size)} numbers for {theta.shape[1]} axes"
        )
    return [TensorType(theta.dtype, (theta.shape[0], *size[2:], rank))]


def _supports_affine_grid(view: NodeView) -> Support:
    rank = len(view.out_shape()) - 2
    return yes_if(
        equal(view.shape(0)[1], rank, "theta has a row for each axis"),
        equal(view.shape(0)[2], rank + 1, "theta has a column for each axis and one more"),
    )


def _lower_affine_grid(view: Lowering) -> Sequence[Stage]:
    out = view.out_shape()
    rank, size = len(out) - 2, product(out)
    lines = []
    for j, axis in enumerate(reversed(range(rank))):
        lines += [
            f"value += load_theta(first + {j}u) * coordinate(rest % params.size{axis}, "
            f"params.size{axis});",
            f"rest /= params.size{axis};",
        ]
    words: dict[str, Dim] = {f"size{axis}": d for axis, d in enumerate(out[1:-1])}
    call = KernelCall(
        "spatial_affine",
        {"theta": view.node.inputs[0], "y": view.node.outputs[0]},
        {"size": size, "points": product(out[1:-1]), **words},
        linear(size),
        flags=frozenset({"ALIGN"} if view.attr("align_corners", 0) else ()),
        text={"RANK": f"{rank}u", "BODY": "\n".join(f"    {line}" for line in lines)},
        extra_params=tuple((name, "u32") for name in words),
    )
    return [(call,)]


def _pooled(view: NodeView) -> tuple[int, int]:
    return int(view.attr("output_height", 1)), int(view.attr("output_width", 1))


def _infer_roi_align(view: InferView) -> list[ValueType]:
    x, rois = view.type(0), view.type(1)
    if x.shape is None or rois.shape is None:
        return [TensorType(x.dtype)]
    if len(x.shape) != 4 or len(rois.shape) != 2:
        raise ShapeError(f"{view.describe()}: wants images [N, C, H, W] and regions [R, 4]")
    return [TensorType(x.dtype, (rois.shape[0], x.shape[1], *_pooled(view)))]


def _supports_roi_align(view: NodeView) -> Support:
    ratio = int(view.attr("sampling_ratio", 0))
    if _text(view.attr("mode", "avg")) not in ("avg", "max"):
        return no("its mode is unknown")
    if ratio <= 0:
        return no("how many samples a region takes depends on its size")
    if ratio * ratio > view.target.max_loop_trips:
        return no("it takes more samples than a loop may")
    return YES


def _lower_roi_align(view: Lowering) -> Sequence[Stage]:
    x, out = view.shape(0), view.out_shape()
    ratio = int(view.attr("sampling_ratio", 0))
    mode = _text(view.attr("coordinate_transformation_mode", "half_pixel"))
    flags = {"HALF_PIXEL"} if mode == "half_pixel" else set()
    if _text(view.attr("mode", "avg")) == "max":
        flags.add("MAX")
    call = KernelCall(
        "spatial_roi",
        {
            "x": view.node.inputs[0],
            "rois": view.node.inputs[1],
            "batch_indices": view.node.inputs[2],
            "y": view.node.outputs[0],
        },
        {
            "size": product(out),
            "channels": x[1],
            "height": x[2],
            "width": x[3],
            "out_height": out[2],
            "out_width": out[3],
            "ratio": ratio,
            "scale": float(view.attr("spatial_scale", 1.0)),
        },
        linear(product(out)),
        flags=frozenset(flags),
        trips=ratio * ratio + ratio,
    )
    return [(call,)]


def _roi_align_flops(view: NodeView) -> Dim:
    return product(view.out_shape()) * (int(view.attr("sampling_ratio", 1)) ** 2 * 30 + 20)


def _agree_grid_sample(view: NodeView) -> Iterator[Guard]:
    """A grid for each image, a coordinate for each axis, and something to sample."""
    x, grid = view.shape(0), view.shape(1)
    yield from alike(view, (x[0], len(x) - 2), (grid[0], grid[-1]))
    for size in x[2:]:
        yield at_least(size, 1)


def _agree_roi_align(view: NodeView) -> Iterator[Guard]:
    """Four edges and an image for each region, and something to sample."""
    count = view.shape(1)[0]
    for size in (view.shape(0)[0], *view.shape(0)[2:]):
        yield at_least(size, 1)
    yield from alike(view, view.shape(1), (count, 4))
    yield from alike(view, view.shape(2), (count,))


register(
    OpDef(
        "GridSample",
        16,
        infer=_infer_grid_sample,
        agree=_agree_grid_sample,
        lower=_lower_grid_sample,
        supports=_supports_grid_sample,
        limits="more than three spatial axes",
        epilogue=True,
        flops=_grid_sample_flops,
        tolerance=2e-5,
    )
)
register(
    OpDef(
        "AffineGrid",
        20,
        infer=_infer_affine_grid,
        lower=_lower_affine_grid,
        supports=_supports_affine_grid,
        limits="theta of another number of axes than the size",
        shape_inputs=(1,),
        epilogue=True,
        flops=lambda view: product(view.out_shape()) * 12,
    )
)
register(
    OpDef(
        "RoiAlign",
        10,
        infer=_infer_roi_align,
        agree=_agree_roi_align,
        lower=_lower_roi_align,
        supports=_supports_roi_align,
        limits="a sampling_ratio of 0",
        dtypes=frozenset({"float32", "float16", "bfloat16", "int64"}),
        epilogue=True,
        flops=_roi_align_flops,
        tolerance=2e-5,
    )
)
