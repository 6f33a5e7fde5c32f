"""Random small ONNX graphs, with the value of every tensor as ONNX Runtime computes it.

Sizes are small and often 1, sometimes 0. Operators whose result jumps (Floor, Less, ArgMax, Cast
to an integer) only get values that float32 computes exactly, so that a rounding error elsewhere is
never a wrong result here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.choices import Choices

Array = NDArray[Any]
OPSET = 20
IR_VERSION = 9
MAX_MAGNITUDE = 1e3
MAX_ELEMENTS = 4096

ort.set_default_logger_severity(4)


@dataclass
class Known:
    """A tensor of the graph: its value, and whether float32 has it exactly."""

    array: Array
    exact: bool


@dataclass
class Candidate:
    """A node to try: dropped if ONNX Runtime refuses it or its values get out of hand.

    Attributes:
        steady: whether the result moves little when the inputs do; else they must be exact.
        keeps: whether exact inputs give exact results.
    """

    op_type: str
    inputs: Sequence[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    steady: bool = True
    keeps: bool = True


def run_ort(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """What ONNX Runtime gives for a model, without its optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    results: list[Array] = session.run(None, feeds)
    return results


def _is_exact(array: Array) -> bool:
    if array.dtype.kind != "f":
        return True
    scaled = array.astype(np.float64) * 256
    return bool(np.all(np.abs(scaled) < 2**22) and np.all(scaled == np.round(scaled)))


class RandomGraph(Choices):
    """Grows a graph node by node.

    Attributes:
        known: every tensor so far.
        inputs, constants: names of those that are fed, and of those in the file.
        nodes: in topological order.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.known: dict[str, Known] = {}
        self.inputs: list[str] = []
        self.constants: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.made: list[str] = []
        self.symbolic = bool(self.rng.random() < 0.6)

    # values -------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def int(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def size(self) -> int:
        return int(
            self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7], p=[0.02, 0.1, 0.1, 0.2, 0.2, 0.18, 0.1, 0.1])
        )

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.int(0, 4) if rank is None else rank
        return tuple(self.size() for _ in range(rank))

    def content(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Small values that float32 has exactly; few of them equal, to keep TopK honest."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype == "float32":
            return np.asarray(self.rng.integers(-24, 25, shape) / 8, np.float32)
        low = 0 if dtype.startswith("u") else -6
        return np.asarray(self.rng.integers(low, 7, shape), dtype)

    def new(self, array: Array, constant: bool | None = None) -> str:
        """A new input or initializer with this content."""
        constant = self.chance(0.4) if constant is None else constant
        name = f"{'c' if constant else 'x'}{len(self.known)}"
        (self.constants if constant else self.inputs).append(name)
        self.known[name] = Known(array, True)
        return name

    def constant(self, values: Any, dtype: str = "int64") -> str:
        return self.new(np.asarray(values, dtype), True)

    def pick(
        self,
        kinds: str = "f",
        fits: Callable[[Array], bool] = lambda a: True,
        shape: Callable[[], tuple[int, ...]] | None = None,
        exact: bool = False,
    ) -> str:
        """A tensor of dtype kind f, i, u or b that fits: mostly one that exists, else a new one."""
        names = [
            n
            for n, k in self.known.items()
            if k.array.dtype.kind in kinds and fits(k.array) and (k.exact or not exact)
        ]
        fresh = [n for n in names if n in self.made[-4:]]
        if names and self.chance(0.8):
            return str(self.one_of(fresh if fresh and self.chance(0.7) else names))
        kind = str(self.one_of(list(kinds)))
        dtype = {"f": "float32", "b": "bool", "u": "uint32"}.get(kind) or self.one_of(
            ["int32", "int64"]
        )
        for _ in range(20):
            array = self.content(dtype, self.shape() if shape is None else shape())
            if fits(array):
                return self.new(array)
        raise DroppedError

    def partner(self, name: str) -> str:
        """A tensor of the same dtype that broadcasts with `name`."""
        mine = self.known[name].array
        dtype = mine.dtype

        def fits(other: Array) -> bool:
            return other.dtype == dtype and _broadcasts(mine.shape, other.shape)

        names = [n for n, k in self.known.items() if fits(k.array)]
        if names and self.chance(0.7):
            return str(self.one_of(names))
        rank = self.int(0, mine.ndim + (1 if self.chance(0.2) else 0))
        tail = mine.shape[mine.ndim - rank :] if rank <= mine.ndim else (2, *mine.shape)
        shape = tuple(1 if self.chance(0.3) else s for s in tail)
        return self.new(self.content(str(dtype), shape))

    def array(self, name: str) -> Array:
        return self.known[name].array

    # growth -------------------------------------------------------------------------------------

    def grow(self, makers: Sequence[Callable[[RandomGraph], Candidate]], count: int) -> None:
        """Adds `count` nodes."""
        tries = 0
        while len(self.nodes) < count and tries < 20 * count:
            tries += 1
            before = (len(self.inputs), len(self.constants), set(self.known))
            try:
                self._add(self.one_of(makers)(self))
            except DroppedError:
                del self.inputs[before[0] :], self.constants[before[1] :]
                for name in self.known.keys() - before[2]:
                    del self.known[name]

    def _add(self, node: Candidate) -> None:
        reads = [self.known[n] for n in node.inputs if n]
        exact = all(k.exact for k in reads)
        if not node.steady and not exact:
            raise DroppedError
        number = len(self.nodes)
        outputs = [f"t{number}_{i}" if i else f"t{number}" for i in range(node.outputs)]
        proto = helper.make_node(node.op_type, list(node.inputs), outputs, **node.attrs)
        proto.name = f"{node.op_type}_{number}"
        feeds = {n: self.array(n) for n in node.inputs if n}
        try:
            arrays = run_ort(_model([proto], feeds, {}, outputs), feeds)
        except Exception as error:  # whatever ORT does not take is no test
            raise DroppedError from error
        for array in arrays:
            if array.size > MAX_ELEMENTS or array.ndim > 6 or array.dtype.kind not in "fiub":
                raise DroppedError
            if array.size and not np.all(np.abs(array.astype(np.float64)) < MAX_MAGNITUDE):
                raise DroppedError
        self.nodes.append(proto)
        for name, array in zip(outputs, arrays, strict=True):
            jumps = array.dtype.kind in "iub"
            keeps = jumps or (exact and node.keeps and _is_exact(array))
            self.known[name] = Known(array, keeps)
            self.made.append(name)

    # result -------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """The graph as a model; some of its tensors are outputs, the last one always."""
        others = [n for n in (*self.made, *self.inputs) if self.chance(0.2)]
        outputs = list(dict.fromkeys([*others[:4], self.made[-1]]))
        used = {i for n in self.nodes for i in n.input} | set(outputs)
        constants = {n: self.array(n) for n in self.constants if n in used}
        feeds = {n: self.array(n) for n in self.inputs}
        dims = self._dims if self.symbolic else None
        model = _model(self.nodes, feeds, constants, outputs, dims)
        for output in model.graph.output:
            dtype = self.array(output.name).dtype
            output.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
        return model

    def _dims(self, name: str) -> list[int | str]:
        shape = self.array(name).shape
        common = self.chance(0.5)
        return [
            (f"d{s}" if common and s > 1 else f"{name}_{a}") if self.chance(0.6) else s
            for a, s in enumerate(shape)
        ]

    def feeds(self) -> dict[str, Array]:
        return {n: self.array(n) for n in self.inputs}


class DroppedError(Exception):
    """This candidate came to nothing."""


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b), dtype=np.int64)) <= MAX_ELEMENTS
    except ValueError:
        return False


def _model(
    nodes: Sequence[onnx.NodeProto],
    feeds: dict[str, Array],
    constants: dict[str, Array],
    outputs: Sequence[str],
    dims: Callable[[str], list[int | str]] | None = None,
) -> onnx.ModelProto:
    def info(name: str, array: Array) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = list(array.shape) if dims is None else dims(name)
        return helper.make_tensor_value_info(name, kind, shape)

    given = [info(n, a) for n, a in feeds.items()]
    graph = helper.make_graph(
        list(nodes),
        "random",
        given,
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    inferred = onnx.shape_inference.infer_shapes(model)
    for output in model.graph.output:
        for found in (*inferred.graph.output, *inferred.graph.value_info):
            if found.name == output.name:
                output.type.tensor_type.elem_type = found.type.tensor_type.elem_type
    return model
