"""What a node or a transfer costs: the work of a node at given sizes, and nanoseconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Literal

from engine import ops
from engine.dims import Dim, Table, dmin, symbols_of
from engine.errors import ShapeError
from engine.ir import Graph, Node, TensorType
from engine.ops._work import formula
from engine.rates import DeviceProfile as DeviceProfile
from engine.records import dataclass
from engine.target import Target
from engine.work import CpuWork, GpuWork, time_ns

Device = Literal["gpu", "cpu"]
Direction = Literal["upload", "download"]

ASSUMED_SIZE = 64
"""Stands for a symbol that is not bound yet, such as a size that data decides in mid-run."""

GPU_ELEMENT_NBYTES = 4
"""Bytes of an element that has a word of its own."""

CALL_STEPS = 8
"""Calls of NumPy that take as long as starting a body."""

ASSUMED_TRIPS = 8
"""How often the body of a Loop is taken to run."""


@dataclass(frozen=True)
class Work:
    """What one run of a node does, on either device.

    Attributes:
        nodes: how many nodes run, those of bodies among them.
        free: it costs nothing: the output is another view of the input, or known from sizes.
    """

    gpu: GpuWork
    cpu: CpuWork
    nodes: int = 1
    free: bool = False


class Sizes:
    """Element counts of the tensors of a graph at one binding; unbound symbols are assumed."""

    def __init__(self, graph: Graph, binding: Mapping[str, int] | None = None) -> None:
        self.binding = binding
        tensors = {n: v.tensor for n, v in graph.values.items() if v.tensor is not None}
        shapes = {n: t.shape for n, t in tensors.items() if t.shape is not None}
        every = list(dict.fromkeys(dim for shape in shapes.values() for dim in shape))
        numbers = (max(number, 0) for number in evaluate_all(every, binding))
        number = dict(zip(every, numbers, strict=True))
        self._shapes = {n: tuple(number[d] for d in shape) for n, shape in shapes.items()}
        self._counts = {n: prod(shape) for n, shape in self._shapes.items()}
        self._host = {n: t.dtype.nbytes for n, t in tensors.items()}
        self._gpu = {n: gpu_element_nbytes(graph, n) for n in tensors}

    def count(self, name: str) -> int:
        """Elements of a value; 0 where its shape is unknown."""
        return self._counts.get(name, 0)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Sizes of a value; None where its rank is unknown."""
        return self._shapes.get(name)

    def gpu_nbytes(self, name: str) -> int:
        """Bytes of a value in a GPU buffer, and of its transfer."""
        return self.count(name) * self._gpu.get(name, GPU_ELEMENT_NBYTES)

    def cpu_nbytes(self, name: str) -> int:
        """Bytes of a value as an array."""
        return self.count(name) * self._host.get(name, 0)


def gpu_element_nbytes(graph: Graph, name: str) -> int:
    """Bytes of an element on the GPU, as far as is known before kernels are chosen.

    Narrow types are packed where the host or an elementwise kernel writes them; other kernels may
    write single elements, each to a word of its own.
    """
    tensor, producer = graph.tensor(name), graph.producer.get(name)
    if tensor is None or not tensor.dtype.narrow:
        return GPU_ELEMENT_NBYTES
    op = ops.definition(producer) if producer is not None else None
    packed = producer is None or (op is not None and op.elementwise is not None)
    return tensor.dtype.nbytes if packed else GPU_ELEMENT_NBYTES


class _Assumed(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return ASSUMED_SIZE


def evaluate_all(items: Iterable[Dim], binding: Mapping[str, int] | None) -> tuple[int, ...]:
    """The integers that dims are at `binding`, symbols it lacks taken as `ASSUMED_SIZE`."""
    return Table(tuple(items)).evaluate(_Assumed(binding or {}))


_PARTIAL_READERS = frozenset({"Compress", "Gather", "GatherElements", "GatherND", "Slice"})


def reads_partly(node: Node, name: str) -> bool:
    """Whether `node` reads at most as many elements of value `name` as it writes."""
    return node.op_type in _PARTIAL_READERS and name == node.inputs[0]


def works(graph: Graph, sizes: Sizes, target: Target | None = None) -> dict[str, Work]:
    """Node key to work, for every node of `graph`; kernels are those of `target`.

    Operands of assumed sizes need not fit each other; then elements are counted.
    Raises: ShapeError for a node whose operands don't fit each other at these sizes.
    """
    found = {}
    for node in graph.nodes:
        view = SizedView(graph, node, sizes, target)
        try:
            found[node.key] = _work(view)
        except ValueError as error:
            if _is_assumed(graph, node, sizes.binding or {}):
                found[node.key] = Work(_plain_gpu(view, None), _plain_cpu(view, None))
                continue
            if isinstance(error, ShapeError):
                raise
            shapes = ", ".join(str(sizes.shape(n)) for n in node.inputs if n)
            raise ShapeError(f"{view.describe()} with shapes {shapes}: {error}") from error
    return found


def _is_assumed(graph: Graph, node: Node, binding: Mapping[str, int]) -> bool:
    """Whether a size of what a node reads or writes is not known."""
    tensors = [graph.tensor(name) for name in (*node.reads, *node.writes)]
    dims = [dim for t in tensors if t is not None and t.shape is not None for dim in t.shape]
    return any(not binding.keys() >= symbols_of(dim) for dim in dims)


class SizedView(ops.NodeView):
    """A node whose operands have the sizes of one binding: shapes are integers."""

    def __init__(
        self, graph: Graph, node: Node, sizes: Sizes, target: Target | None = None
    ) -> None:
        super().__init__(graph, node, target)
        self.sizes = sizes

    def _tensor(self, name: str, what: str) -> TensorType:
        found = super()._tensor(name, what)
        return TensorType(found.dtype, self.sizes.shape(name))


def _is_typed(graph: Graph, node: Node) -> bool:
    names = [n for n in (*node.inputs, *node.outputs) if n]
    tensors = [graph.tensor(name) for name in names]
    return all(t is not None and t.shape is not None for t in tensors)


NOTHING = Work(GpuWork(0), CpuWork(0), 0, free=True)


def _body_work(view: SizedView) -> Work:
    """A control flow node: the longest of its bodies, as often as it may run."""
    node = view.node
    found = []
    for body in node.bodies.values():
        inner = works(body, Sizes(body, view.sizes.binding), view.target)
        steps = sum((w.cpu for w in inner.values()), CpuWork(CALL_STEPS))
        found.append((steps, 1 + sum(w.nodes for w in inner.values())))
    if node.op_type == "If":
        longest, count = max(found, key=lambda each: each[1])
        return Work(GpuWork(), longest, count)
    steps, count = found[0]
    return Work(GpuWork(), steps.times(ASSUMED_TRIPS), count * ASSUMED_TRIPS)


def _work(view: SizedView) -> Work:
    node, op = view.node, ops.definition(view.node)
    if op is not None and op.view:
        return NOTHING
    if all(view.graph.values[name].dims is not None for name in node.writes):
        return NOTHING
    if node.bodies:
        return _body_work(view)
    if op is None or not _is_typed(view.graph, node):
        return Work(_plain_gpu(view, None), _plain_cpu(view, None))
    try:
        gpu = op.gpu(view) if op.gpu is not None and op.on_gpu else _plain_gpu(view, op)
    except ShapeError as error:
        raise view.named(error) from error
    if op.launches is not None:
        gpu = dataclasses.replace(gpu, launches=_integer(op.launches(view)))
    return Work(gpu, _plain_cpu(view, op) if op.cpu is None else op.cpu(view))


def _integer(dim: Dim) -> int:
    if not isinstance(dim, int):
        raise ShapeError(f"a cost is {dim}, and should be a number")
    return dim


def _read_count(view: SizedView, name: str) -> int:
    """Elements of value `name` that a node reads."""
    count = view.sizes.count(name)
    if not reads_partly(view.node, name):
        return count
    return min(count, sum(map(view.sizes.count, view.node.writes)))


def _read(view: SizedView, op: ops.OpDef | None) -> list[str]:
    if view.node.op_type in ("Shape", "Size"):
        return []
    skipped = {view.node.input(i) for i in op.shape_inputs} if op is not None else set()
    return [name for name in view.node.reads if name not in skipped]


def _flops(view: SizedView, op: ops.OpDef | None, writes: int) -> int:
    if op is None or op.flops is None:
        return writes
    return max(_integer(op.flops(view)), 0)


def _plain_gpu(view: SizedView, op: ops.OpDef | None) -> GpuWork:
    """Work of a kernel of which nothing is known but what it reads, writes and computes."""
    sizes, writes = view.sizes, sum(map(view.sizes.count, view.node.writes))
    launches = 1 + (op.scratch if op is not None else 0)
    ops_count = max(_flops(view, op, writes) - writes, 0)
    if op is None or op.elementwise is None:
        return GpuWork(launches, strided=writes, ops=ops_count)
    nbytes = sum(map(sizes.gpu_nbytes, view.node.writes))
    strided = 0
    for name in _read(view, op):
        count = sizes.count(name)
        if count == writes:
            nbytes += sizes.gpu_nbytes(name)
        elif count > 1:
            strided = writes
    return GpuWork(launches, nbytes=nbytes, strided=strided, ops=ops_count)


def _plain_cpu(view: SizedView, op: ops.OpDef | None) -> CpuWork:
    """Work of a NumPy function of which nothing is known but what it reads, writes and computes."""
    writes = sum(map(view.sizes.count, view.node.writes))
    if op is not None and op.elementwise is not None:
        return formula(view, 1)
    more = max(_flops(view, op, writes) - writes, 0)
    return CpuWork(3, passes=(_moved(view, op),), near=8 * more)


def _moved(view: SizedView, op: ops.OpDef | None) -> int:
    """Bytes of the arrays that a node reads and writes."""
    sizes = view.sizes
    moved = sum(map(sizes.cpu_nbytes, view.node.writes))
    for name in _read(view, op):
        count = max(sizes.count(name), 1)
        moved += sizes.cpu_nbytes(name) * _read_count(view, name) // count
    return moved


def amounts(graph: Graph, sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Node key to operations, and bytes of the arrays read and written, whatever the device."""
    found = {}
    for node in graph.nodes:
        view, op = SizedView(graph, node, sizes), ops.definition(node)
        known = op if op is not None and not op.view and _is_typed(graph, node) else None
        writes = 0 if op is not None and op.view else sum(map(sizes.count, node.writes))
        nbytes = 0 if op is not None and op.view else _moved(view, op)
        found[node.key] = _flops(view, known, writes), nbytes
    return found


def dispatch_work(graph: Graph, nodes: Sequence[Node], touched: Sequence[str]) -> tuple[Dim, Dim]:
    """Operations of `nodes`, and bytes of what their dispatch reads and writes of values."""
    flops: Dim = 0
    for node in nodes:
        op = ops.definition(node)
        output = graph.tensor(node.outputs[0])
        if op is not None and op.flops is not None and _is_typed(graph, node):
            flops = flops + op.flops(ops.NodeView(graph, node))
        elif output is not None and output.size is not None:
            flops = flops + output.size
    nbytes: Dim = 0
    for name in dict.fromkeys(touched):
        tensor = graph.tensor(name)
        if tensor is not None and tensor.size is not None:
            size = _touched(graph, nodes, name, tensor.size)
            nbytes = nbytes + size * gpu_element_nbytes(graph, name)
    return flops, nbytes


def _touched(graph: Graph, nodes: Sequence[Node], name: str, size: Dim) -> Dim:
    """Elements that `nodes` read or write of a value of `size`."""
    readers = [node for node in nodes if name in node.reads]
    if not readers or not all(reads_partly(node, name) for node in readers):
        return size
    made = [graph.tensor(written) for node in readers for written in node.writes]
    sizes = [t.size for t in made if t is not None and t.size is not None]
    return dmin(size, sum(sizes, start=0)) if len(sizes) == len(made) else size


def node_ns(device: Device, work: Work, profile: DeviceProfile) -> int:
    """Predicted time of one run of a node, in nanoseconds, without transfers."""
    if device == "gpu":
        return work.gpu.ns(profile.gpu)
    return work.nodes * profile.cpu.node_ns + work.cpu.ns(profile.cpu)


def transfer_ns(direction: Direction, nbytes: int, profile: DeviceProfile) -> int:
    """Predicted time to move `nbytes` between an array and a GPU buffer, in nanoseconds."""
    rates = profile.gpu
    if direction == "upload":
        return rates.upload_latency_ns + time_ns(nbytes, rates.upload_bytes_per_s)
    return rates.readback_ns + time_ns(nbytes, rates.download_bytes_per_s)


def fused_ns(nbytes: int, profile: DeviceProfile) -> int:
    """What is saved by not moving `nbytes` through GPU memory; never more than they cost."""
    return nbytes * 1_000_000_000 // profile.gpu.bytes_per_s
