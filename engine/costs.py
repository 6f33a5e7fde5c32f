"""What a node or a transfer costs: a device profile, the work of a node, and nanoseconds.

The model is a sum, not a maximum: launch + operations / rate + bytes / bandwidth. That is a little
pessimistic where a device overlaps them, but what fusion saves (a launch, the bytes of a value) is
then exactly the part of the cost that falls away.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from math import prod
from pathlib import Path
from typing import Literal

from engine import ops
from engine.dims import Dim, Table
from engine.errors import EngineError
from engine.ir import Graph, Node

Device = Literal["gpu", "cpu"]
Direction = Literal["upload", "download"]

ASSUMED_SIZE = 64
"""Stands for a symbol that is not bound yet, such as a size that data decides in mid-run."""

GPU_ELEMENT_NBYTES = 4
"""Bytes of an element that has a word of its own."""


@dataclass(frozen=True)
class DeviceProfile:
    """The speed of one GPU, of the way to it, and of NumPy beside it.

    Attributes:
        name: the adapter, for people.
        launch_ns: one more dispatch in a compute pass.
        submit_ns: one command encoder and its submit, paid once if anything runs on the GPU.
        gpu_flops_per_s, gpu_bytes_per_s: rates of a good kernel, reads and writes counted.
        upload_latency_ns, upload_bytes_per_s: one value from an array into a buffer.
        download_latency_ns, download_bytes_per_s: one value back, with the submit and the
            wait that it forces.
        cpu_flops_per_s: rate of a matrix product in NumPy.
        cpu_bytes_per_s: rate of an elementwise operator in NumPy, reads and writes counted.
        cpu_op_ns: what one operator costs in NumPy whatever its size.
    """

    name: str
    launch_ns: int
    submit_ns: int
    gpu_flops_per_s: int
    gpu_bytes_per_s: int
    upload_latency_ns: int
    upload_bytes_per_s: int
    download_latency_ns: int
    download_bytes_per_s: int
    cpu_flops_per_s: int
    cpu_bytes_per_s: int
    cpu_op_ns: int

    def __post_init__(self) -> None:
        for field in _RATES:
            value = getattr(self, field)
            least = 1 if field.endswith("_per_s") else 0
            if type(value) is not int or value < least:
                raise EngineError(
                    f"device profile {self.name!r}: {field} must be an integer of at least "
                    f"{least}, but is {value!r}"
                )

    def to_json(self) -> str:
        """The profile as a JSON object, one line per field."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DeviceProfile:
        """The profile that `to_json` wrote.

        Raises: EngineError if the text is no JSON object, or a field is missing, unknown or wrong.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise EngineError(f"a device profile must be JSON: {error}") from error
        if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
            raise EngineError("a device profile must be a JSON object with a name")
        names = {"name", *_RATES}
        if fields.keys() != names:
            raise EngineError(
                f"device profile {fields['name']!r}: missing {sorted(names - fields.keys())}, "
                f"unknown {sorted(fields.keys() - names)}"
            )
        return cls(**fields)

    @classmethod
    def load(cls, path: str | Path) -> DeviceProfile:
        """The profile in a JSON file. Raises: EngineError if it is damaged, OSError if unread."""
        try:
            return cls.from_json(Path(path).read_bytes().decode())
        except UnicodeDecodeError as error:
            raise EngineError(f"device profile {path} is not UTF-8: {error}") from error

    @classmethod
    def builtin(cls, name: str = "integrated") -> DeviceProfile:
        """A profile that comes with the engine. Raises: EngineError if there is none so named."""
        folder = resources.files("engine") / "profiles"
        file = folder / f"{name}.json"
        if not file.is_file():
            known = sorted(f.name.removesuffix(".json") for f in folder.iterdir())
            raise EngineError(f"no device profile {name!r}; known are {', '.join(known)}")
        return cls.from_json(file.read_text(encoding="utf-8"))


_RATES = tuple(f.name for f in dataclasses.fields(DeviceProfile) if f.name != "name")


@dataclass(frozen=True)
class Work:
    """What one run of a node does.

    Attributes:
        flops: floating point (or integer) operations.
        gpu_nbytes, cpu_nbytes: bytes read and written, as elements lie on either device.
        launches: dispatches.
        free: the node moves nothing: its output is another view of its input.
    """

    flops: int
    gpu_nbytes: int
    cpu_nbytes: int
    launches: int = 1
    free: bool = False


class Sizes:
    """Element counts of the tensors of a graph at one binding; unbound symbols are assumed."""

    def __init__(self, graph: Graph, binding: Mapping[str, int] | None = None) -> None:
        tensors = {n: v.tensor for n, v in graph.values.items() if v.tensor is not None}
        shapes = {n: t.shape for n, t in tensors.items() if t.shape is not None}
        every = list(dict.fromkeys(dim for shape in shapes.values() for dim in shape))
        number = dict(zip(every, evaluate_all(every, binding), strict=True))
        self._counts = {n: prod(number[d] for d in shape) for n, shape in shapes.items()}
        self._host = {n: t.dtype.nbytes for n, t in tensors.items()}
        self._gpu = {n: gpu_element_nbytes(graph, n) for n in tensors}

    def count(self, name: str) -> int:
        """Elements of a value; 0 where its shape is unknown."""
        return self._counts.get(name, 0)

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


def works(graph: Graph, sizes: Sizes, binding: Mapping[str, int] | None) -> dict[str, Work]:
    """Node key to work, for every node of `graph` (bodies are not entered)."""
    flops: dict[str, Dim] = {}
    launches: dict[str, Dim] = {}
    for node in graph.nodes:
        op = ops.definition(node)
        if op is None or (op.flops is op.launches is None) or not _is_typed(graph, node):
            continue
        view = ops.NodeView(graph, node)
        if op.flops is not None:
            flops[node.key] = op.flops(view)
        if op.launches is not None:
            launches[node.key] = op.launches(view)
    numbers = iter(evaluate_all((*flops.values(), *launches.values()), binding))
    known = dict(zip(flops, numbers, strict=False)), dict(zip(launches, numbers, strict=True))
    return {
        node.key: _work(node, sizes, *(found.get(node.key) for found in known))
        for node in graph.nodes
    }


def _is_typed(graph: Graph, node: Node) -> bool:
    names = [n for n in (*node.inputs, *node.outputs) if n]
    tensors = [graph.tensor(name) for name in names]
    return all(t is not None and t.shape is not None for t in tensors)


def _work(node: Node, sizes: Sizes, flops: int | None, launches: int | None) -> Work:
    op = ops.definition(node)
    if op is not None and op.view:
        return Work(0, 0, 0, launches=0, free=True)
    skipped = {node.input(i) for i in op.shape_inputs} if op is not None else set()
    writes = sum(map(sizes.count, node.writes))
    gpu = sum(map(sizes.gpu_nbytes, node.writes))
    cpu = sum(map(sizes.cpu_nbytes, node.writes))
    for name in node.reads:
        if name in skipped or node.op_type in ("Shape", "Size"):
            continue
        size = max(sizes.count(name), 1)
        read = min(writes, size) if reads_partly(node, name) else size
        gpu += sizes.gpu_nbytes(name) * read // size
        cpu += sizes.cpu_nbytes(name) * read // size
    if launches is None:
        launches = 1 + (op.scratch if op is not None else 0)
    return Work(writes if flops is None else max(flops, 0), gpu, cpu, launches)


def dispatch_work(graph: Graph, nodes: Sequence[Node], touched: Sequence[str]) -> tuple[Dim, Dim]:
    """Operations of `nodes`, and bytes of the values that their dispatch reads and writes."""
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
            nbytes = nbytes + tensor.size * gpu_element_nbytes(graph, name)
    return flops, nbytes


def node_ns(device: Device, work: Work, profile: DeviceProfile) -> int:
    """Predicted time of one run of a node, in nanoseconds, without transfers."""
    if work.free:
        return 0
    if device == "gpu":
        return (
            work.launches * profile.launch_ns
            + _time_ns(work.flops, profile.gpu_flops_per_s)
            + _time_ns(work.gpu_nbytes, profile.gpu_bytes_per_s)
        )
    return (
        profile.cpu_op_ns
        + _time_ns(work.flops, profile.cpu_flops_per_s)
        + _time_ns(work.cpu_nbytes, profile.cpu_bytes_per_s)
    )


def transfer_ns(direction: Direction, nbytes: int, profile: DeviceProfile) -> int:
    """Predicted time to move `nbytes` between an array and a GPU buffer, in nanoseconds."""
    if direction == "upload":
        return profile.upload_latency_ns + _time_ns(nbytes, profile.upload_bytes_per_s)
    return profile.download_latency_ns + _time_ns(nbytes, profile.download_bytes_per_s)


def fused_ns(nbytes: int, profile: DeviceProfile) -> int:
    """What is saved by not moving `nbytes` through GPU memory; never more than they cost."""
    return nbytes * 1_000_000_000 // profile.gpu_bytes_per_s


def _time_ns(amount: int, per_second: int) -> int:
    return -(-amount * 1_000_000_000 // per_second)
