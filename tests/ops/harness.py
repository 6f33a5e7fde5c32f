"""One operator on every path: NumPy fallback, the engine on CPU and GPU, against onnx.reference.

A family lists `OpCase`s; `check_cpu`, `check_infer` and `check_gpu` run them, in tests that
`standard.py` makes of the list. Expected values come from onnx.reference in float64, from a
function of the case, or from the fallback itself.
"""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx.reference import ReferenceEvaluator

from cpu_fallback import registry
from engine import dims, dtypes, errors
from engine.dims import Dim
from engine.ir import Graph, Node, TensorType, Value
from engine.ops import InferView, NodeView, OpDef, Support, definition, lookup, no

OPSET = 28
Array = np.ndarray[Any, np.dtype[Any]]
Spec = tuple[tuple[int, ...], str]
"""Shape and NumPy dtype name of an input filled with seeded noise."""


@dataclass(frozen=True)
class OpCase:
    """A single node with inputs.

    Attributes:
        op: op_type.
        inputs: arrays, `Spec`s, or None for omitted ones, in ONNX order.
        attrs: attributes of the node.
        n_outputs: outputs the node writes.
        tol: largest error over the largest magnitude of the expected output; None takes the
            `OpDef`'s. Integers and bools must match exactly.
        rtol: largest relative error of each element by itself, checked besides `tol` if given.
        domain, opset: as in the model.
        constants: indices of inputs stored as initializers; None: the `OpDef`'s shape inputs.
        oracle: expected outputs from the inputs; None: onnx.reference in float64; "fallback": the
            NumPy function (where the reference is wrong or cannot run).
        cpu_only: whether the GPU must refuse it.
        name: shown in the test's id.
    """

    op: str
    inputs: tuple[Array | Spec | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    n_outputs: int = 1
    tol: float | None = None
    rtol: float | None = None
    domain: str = ""
    opset: int = OPSET
    constants: tuple[int, ...] | None = None
    oracle: Callable[..., Any] | str | None = None
    cpu_only: bool = False
    name: str = ""

    @property
    def since(self) -> int:
        """Opset version that introduced the form of the operator this case uses."""
        try:
            return int(onnx.defs.get_schema(self.op, self.opset, self.domain).since_version)
        except onnx.defs.SchemaError:
            return 1

    @property
    def definition(self) -> OpDef | None:
        return lookup(self.op, self.since, self.domain)

    def replace(self, **changes: Any) -> OpCase:
        return dataclasses.replace(self, **changes)


def case_id(case: OpCase) -> str:
    """Readable id: operator, name or shapes, attributes."""
    if case.name:
        return f"{case.op}-{case.name}"
    parts = []
    for value in case.inputs:
        if value is None:
            parts.append("none")
            continue
        shape, dtype = (value.shape, value.dtype) if isinstance(value, np.ndarray) else value
        parts.append("x".join(map(str, shape)) + f"{np.dtype(dtype).char}")
    attrs = ",".join(f"{k}={v}" for k, v in case.attrs.items() if not isinstance(v, np.ndarray))
    return "-".join([case.op, *parts, *([attrs] if attrs else [])])


def arrays(case: OpCase) -> list[Array | None]:
    """The inputs as arrays; noise is seeded by the case, so runs repeat."""
    rng = np.random.default_rng(zlib.crc32(case_id(case).encode()))
    return [
        value if value is None or isinstance(value, np.ndarray) else noise(rng, *value)
        for value in case.inputs
    ]


def noise(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Normal floats, integers in [-9, 9] (unsigned: [0, 18]), or random bools."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.random(tuple(shape)) < 0.5)
    if kind.kind == "u":
        return np.asarray(rng.integers(0, 19, tuple(shape))).astype(kind)
    if kind.kind == "i":
        return np.asarray(rng.integers(-9, 10, tuple(shape))).astype(kind)
    return np.asarray(rng.standard_normal(tuple(shape))).astype(kind)


def ints(*values: int) -> Array:
    """The numbers as a vector of int64: axes, shapes, indices."""
    return np.array(values, np.int64)


def _constants(case: OpCase) -> tuple[int, ...]:
    if case.constants is not None:
        return case.constants
    op = case.definition
    return op.shape_inputs if op is not None else ()


def build_model(
    case: OpCase, values: Sequence[Array | None] | None = None, *, dynamic: bool = False
) -> onnx.ModelProto:
    """The single-node model: inputs x0, x1, ..., outputs y0, y1, ...

    Args:
        values: arrays that give types, shapes and initializers; None: those of the case.
        dynamic: every dim of every graph input is a name of its own, so nothing is known.
    """
    values = arrays(case) if values is None else values
    names = ["" if v is None else f"x{i}" for i, v in enumerate(values)]
    outputs = [f"y{i}" for i in range(case.n_outputs)]
    node = oh.make_node(case.op, names, outputs, name="node", domain=case.domain, **case.attrs)
    fixed = _constants(case)
    infos, initializers = [], []
    for i, value in enumerate(values):
        if value is None:
            continue
        if i in fixed:
            initializers.append(onnx.numpy_helper.from_array(value, f"x{i}"))
            continue
        shape = [f"d{i}_{axis}" if dynamic else size for axis, size in enumerate(value.shape)]
        code = oh.np_dtype_to_tensor_dtype(value.dtype)
        infos.append(oh.make_tensor_value_info(f"x{i}", code, shape))
    results = [oh.make_empty_tensor_value_info(name) for name in outputs]
    graph = oh.make_graph([node], "one_node", infos, results, initializers)
    opsets = [oh.make_opsetid("", case.opset if not case.domain else OPSET)]
    if case.domain:
        opsets.append(oh.make_opsetid(case.domain, case.opset))
    return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(case: OpCase, values: Sequence[Array | None]) -> dict[str, Array]:
    """Arrays of the graph inputs."""
    fixed = _constants(case)
    return {f"x{i}": v for i, v in enumerate(values) if v is not None and i not in fixed}


def _attribute(value: Any) -> Any:
    """An attribute as the engine has it: tensors as arrays, arrays of numbers as lists."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def run_fallback(case: OpCase, values: Sequence[Array | None]) -> list[Any]:
    """Outputs of the NumPy function."""
    attrs = {k: _attribute(v) for k, v in case.attrs.items()}
    return registry.run(case.op, case.domain, case.since, attrs, list(values), case.n_outputs)


def expected(case: OpCase, values: Sequence[Array | None]) -> list[Any]:
    """What the outputs should be; floats in float64 where the oracle computes in it."""
    if callable(case.oracle):
        with np.errstate(all="ignore"):
            result = case.oracle(*values)
        return list(result) if isinstance(result, tuple) else [result]
    if case.oracle == "fallback":
        return run_fallback(case, values)
    wide = [
        v.astype(np.float64) if v is not None and v.dtype in (np.float32, np.float16) else v
        for v in values
    ]
    model = build_model(case.replace(constants=()), wide)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        evaluator = ReferenceEvaluator(model)
        return list(evaluator.run(None, feeds(case.replace(constants=()), wide)))


def compare(got: Any, want: Any, tol: float, rtol: float | None = None) -> None:
    """Fails unless shapes are equal, NaN and infinities sit alike and errors are within bounds."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if not _is_float(got.dtype):
        np.testing.assert_array_equal(got, want)
        return
    got = got.astype(np.float64)
    largest = float(np.finfo(np.float32).max)
    want = want.astype(np.float64)
    overflown = (np.abs(want) > largest) & np.isinf(got)
    want = np.where(overflown, np.copysign(np.inf, want), want)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    assert np.isfinite(got[finite]).all(), "infinity or NaN where a number is expected"
    if not finite.any():
        return
    errors = np.abs(got[finite] - want[finite])
    scale = max(float(np.abs(want[finite]).max()), 1e-30)
    worst = float(errors.max())
    place = np.argwhere(finite)[int(errors.argmax())]
    assert worst <= tol * scale, (
        f"error {worst:.3g} exceeds {tol:.1g} of {scale:.3g} at {tuple(place)}: "
        f"{got[tuple(place)]!r}, expected {want[tuple(place)]!r}"
    )
    if rtol is not None:
        sizes = np.maximum(np.abs(want[finite]), 1e-30)
        worst = float((errors / sizes).max())
        place = tuple(np.argwhere(finite)[int((errors / sizes).argmax())])
        assert worst <= rtol, (
            f"relative error {worst:.3g} exceeds {rtol:.1g} at {place}: "
            f"{got[place]!r}, expected {want[place]!r}"
        )


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def tolerance(case: OpCase) -> float:
    """The case's own, or its operator's."""
    if case.tol is not None:
        return case.tol
    op = case.definition
    return op.tolerance if op is not None else 1e-5


def check_cpu(case: OpCase) -> None:
    """The NumPy function agrees with the oracle, keeps dtypes and its inputs unchanged."""
    values = arrays(case)
    before = [None if v is None else v.copy() for v in values]
    got = run_fallback(case, values)
    for value, copy in zip(values, before, strict=True):
        if value is not None and copy is not None:
            np.testing.assert_array_equal(value, copy)
    for mine, want in zip(got, expected(case, values), strict=True):
        _check_dtype(mine, np.asarray(want), values)
        compare(mine, want, tolerance(case), case.rtol)


def _check_dtype(mine: Array, want: Array, values: Sequence[Array | None]) -> None:
    if want.dtype == np.float64 and not any(
        v is not None and v.dtype == np.float64 for v in values
    ):
        assert _is_float(mine.dtype) and mine.dtype != np.float64, f"dtype is {mine.dtype}"
    else:
        assert mine.dtype == want.dtype, f"dtype {mine.dtype}, expected {want.dtype}"


def node_graph(
    case: OpCase, values: Sequence[Array | None], *, dynamic: bool = False
) -> tuple[Graph, Node, dict[str, int]]:
    """The case as an `ir.Graph` without output types, its node, and the binding of its symbols."""
    fixed = _constants(case)
    known: dict[str, Value] = {}
    binding: dict[str, int] = {}
    for i, value in enumerate(values):
        if value is None:
            continue
        shape: list[Dim] = []
        for axis, size in enumerate(value.shape):
            name = f"d{i}_{axis}"
            shape.append(dims.symbol(name) if dynamic and i not in fixed else size)
            binding[name] = size
        kind = TensorType(dtypes.from_numpy(value.dtype), tuple(shape))
        known[f"x{i}"] = Value(f"x{i}", kind, value if i in fixed else None)
    node = Node(
        case.op,
        tuple("" if v is None else f"x{i}" for i, v in enumerate(values)),
        tuple(f"y{i}" for i in range(case.n_outputs)),
        {k: _attribute(v) for k, v in case.attrs.items()},
        case.domain,
        case.since,
        "node",
    )
    outputs = {name: Value(name) for name in node.outputs}
    inputs = tuple(f"x{i}" for i, v in enumerate(values) if v is not None and i not in fixed)
    graph = Graph((node,), {**known, **outputs}, inputs, node.outputs, opset={"": OPSET})
    return graph, node, binding


def inferred(case: OpCase, *, dynamic: bool = False) -> tuple[Graph, Node, dict[str, int]]:
    """`node_graph` with the output types that the operator's `infer` gives."""
    graph, node, binding = node_graph(case, arrays(case), dynamic=dynamic)
    op = definition(node)
    assert op is not None and op.infer is not None, f"{case.op} has no infer rule"
    fresh = (dims.symbol(f"fresh{i}") for i in range(99))
    types = op.infer(InferView(graph, node, lambda hint: next(fresh)))
    values = dict(graph.values)
    for name, kind in zip(node.outputs, types, strict=False):
        values[name] = Value(name, kind)
    return graph.replace(values=values), node, binding


def supported(case: OpCase, *, dynamic: bool = False) -> Support:
    """What the operator's own `agree` and `supports` say of the case."""
    graph, node, _ = inferred(case, dynamic=dynamic)
    op, view = definition(node), NodeView(graph, node)
    assert op is not None
    for guard in op.agree(view) if op.agree is not None else ():
        if guard.known is False:
            return no(f"it needs that {guard}")
    return Support(True) if op.supports is None else op.supports(view)


def check_infer(case: OpCase) -> None:
    """`infer` gives the fallback's dtypes and shapes, with sizes known and with symbols."""
    outputs = run_fallback(case, arrays(case))
    for dynamic in (False, True):
        graph, node, binding = inferred(case, dynamic=dynamic)
        for name, output in zip(node.outputs, outputs, strict=False):
            kind = graph.tensor(name)
            assert kind is not None and kind.shape is not None, f"{name} has no type"
            assert kind.dtype == dtypes.from_numpy(output.dtype), f"{name} is {kind}"
            assert len(kind.shape) == output.ndim, f"{name} is {kind}, not {output.shape}"
            for dim, size in zip(kind.shape, output.shape, strict=True):
                if dims.symbols_of(dim) <= binding.keys():
                    assert dims.evaluate(dim, binding) == size, f"{kind} against {output.shape}"


def check_gpu(case: OpCase, *, dynamic: bool = False) -> None:
    """The engine on the GPU agrees with the oracle; `cpu_only` cases are refused with a reason."""
    import engine

    values = arrays(case)
    model = build_model(case, values, dynamic=dynamic)
    if case.cpu_only:
        with pytest.raises(errors.EngineError, match=case.op):
            with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
                session.run(None, feeds(case, values))
        return
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        got = session.run(None, feeds(case, values))
    fallback = run_fallback(case, values)
    for mine, want, numpy in zip(got, expected(case, values), fallback, strict=True):
        assert mine.dtype == numpy.dtype, f"dtype {mine.dtype}, the fallback gives {numpy.dtype}"
        compare(mine, want, tolerance(case), case.rtol)


def check_engine_cpu(case: OpCase) -> None:
    """The engine with device="cpu" gives exactly what the NumPy function gives."""
    import engine

    values = arrays(case)
    with engine.InferenceSession(build_model(case, values), device="cpu") as session:
        got = session.run(None, feeds(case, values))
    for mine, want in zip(got, run_fallback(case, values), strict=True):
        assert mine.dtype == want.dtype
        np.testing.assert_array_equal(mine, want)
