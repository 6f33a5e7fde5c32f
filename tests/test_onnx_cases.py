"""All cases of `onnx.backend.test` load, and inference agrees with what they expect."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from engine import dims
from engine.importer import load_model
from engine.ir import Graph, OptionalType, SequenceType, TensorType, ValueType
from engine.passes import run_passes

COUNTS = {"node": 1884, "simple": 23, "pytorch-converted": 82, "pytorch-operator": 35, "light": 9}
UNTYPED = {"test_gradient_of_add", "test_gradient_of_add_and_mul"}
"""Training operators that onnx itself infers nothing of."""

Case = tuple[str, onnx.ModelProto | Path, list[Any], list[Any]]


def cases(kind: str) -> Iterator[Case]:
    """Name, model, inputs and outputs of each case (none for the light models)."""
    if kind == "light":
        folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
        for path in sorted(folder.glob("*.onnx")):
            yield path.stem, path, [], []
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind=kind)
    for case in found:
        if case.model is not None:
            inputs, outputs = case.data_sets[0]
            yield case.name, case.model, [_array(v) for v in inputs], [_array(v) for v in outputs]
        else:
            folder = Path(case.model_dir)
            graph = onnx.load(folder / "model.onnx").graph
            data = folder / "test_data_set_0"
            inputs = [_read(data / f"input_{i}.pb", v) for i, v in enumerate(graph.input)]
            outputs = [_read(data / f"output_{i}.pb", v) for i, v in enumerate(graph.output)]
            yield case.name, folder / "model.onnx", inputs, outputs


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(path: Path, info: onnx.ValueInfoProto) -> Any:
    if not path.exists():
        return None
    data = path.read_bytes()
    match info.type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def symbolic(graph: Graph, inputs: list[Any]) -> tuple[Graph, dict[str, int]]:
    """The graph with a symbol for each input size but 1, and the sizes of `inputs`."""
    values, binding = dict(graph.values), {}
    for name, array in zip(graph.inputs, inputs, strict=False):
        kind = values[name].tensor
        if kind is None or kind.shape is None or array is None or graph.constant(name) is not None:
            continue
        shape = [
            1 if dim == 1 else dims.symbol(f"{name}_{axis}") for axis, dim in enumerate(kind.shape)
        ]
        sizes = zip(shape, np.shape(array), strict=True)
        binding.update((str(dim), size) for dim, size in sizes if dim != 1)
        values[name] = values[name].replace(type=TensorType(kind.dtype, tuple(shape)))
    return graph.replace(values=values), binding


def problem(kind: ValueType | None, wanted: Any, binding: dict[str, int]) -> str:
    """Where an inferred type contradicts a value; unknown ranks and fresh symbols don't."""
    if isinstance(kind, OptionalType):
        return "" if wanted is None else problem(kind.element, wanted, binding)
    if isinstance(kind, SequenceType):
        return "" if isinstance(wanted, list) else f"{kind} for a {type(wanted)}"
    if kind is None:
        return "no type"
    array = np.asarray(wanted)
    if kind.dtype.numpy != (np.dtype(object) if array.dtype.kind in "OUS" else array.dtype):
        return f"{kind} for {array.dtype}"
    if kind.shape is None:
        return ""
    if len(kind.shape) != array.ndim:
        return f"{kind} for {array.shape}"
    known = [dims.symbols_of(d) <= binding.keys() for d in kind.shape]
    sizes = [
        dims.evaluate(d, binding) if k else s
        for d, k, s in zip(kind.shape, known, array.shape, strict=True)
    ]
    return "" if tuple(sizes) == array.shape else f"{kind} for {array.shape}"


@pytest.mark.slow
@pytest.mark.parametrize("bound", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", COUNTS)
def test_types_fit_the_expected_outputs(kind: str, bound: bool) -> None:
    wrong, count = [], 0
    for name, model, inputs, outputs in cases(kind):
        count += 1
        try:
            graph, binding = symbolic(load_model(model).graph, inputs)
            result = run_passes(graph, binding=binding if bound else None)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if not all(guard.holds(binding) for guard in result.guards):
            wrong.append(f"{name}: a guard fails")
        for output, value in zip(result.graph.outputs, outputs, strict=False):
            found = problem(result.graph.values[output].type, value, binding)
            if found and name not in UNTYPED:
                wrong.append(f"{name}: {output}: {found}")
    assert count == COUNTS[kind]
    assert not wrong, "\n".join(wrong)
