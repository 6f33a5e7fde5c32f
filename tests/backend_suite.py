"""The cases of `onnx.backend.test`, what the engine makes of each, and the file that records it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

from engine import backend
from engine.backend import WgpuBackendRep

STATUS_FILE = Path(__file__).with_name("onnx_backend_status.txt")
CATEGORIES = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
PASSES = frozenset({"pass", "gpu", "cpu", "folded"})
RANDOM = "random"
"""Of such a case only types and shapes are compared."""
HEADER = """\
# One line per case of onnx.backend.test: name | on the CPU | on the GPU.
# CPU: "pass". GPU: where the operator under test ran, "gpu" or "cpu", or "folded" if it had nothing
# to do in the call; for a case of several operators "gpu" means that all of them ran there.
# Anything else is a failure and says why; "random ..." compares no values.
# Written by `python -m tests.update_backend_status`, which keeps the reasons written by hand.
"""
_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")
DataSets = list[tuple[list[Any], list[Any]]]


@dataclass(frozen=True, eq=False)
class Case:
    """One case.

    Attributes:
        name: category and name.
        source: as the suite has it.
    """

    name: str
    source: TestCase

    @property
    def rtol(self) -> float:
        return float(self.source.rtol)

    @property
    def atol(self) -> float:
        return float(self.source.atol)

    @cached_property
    def model(self) -> onnx.ModelProto:
        if self.source.model is not None:
            return self.source.model
        folder = self.source.model_dir
        return onnx.load(_light(self.source) if folder is None else Path(folder, "model.onnx"))

    @property
    def main(self) -> str | None:
        """The operator under test; None where there are several."""
        single = self.name.startswith("node/") and not _EXPANDED.search(self.name)
        return self.model.graph.node[0].op_type if single else None

    def data_sets(self) -> DataSets:
        """Inputs and expected outputs."""
        if self.source.data_sets is not None:
            return [
                ([_normalize_tensor(x) for x in given], [_normalize_tensor(x) for x in expected])
                for given, expected in self.source.data_sets
            ]
        if self.source.model_dir is None:
            return [self._light_data()]
        folders = sorted(Path(self.source.model_dir).glob("test_data_set*"))
        graph = self.model.graph
        return [(_read(f, "input", graph.input), _read(f, "output", graph.output)) for f in folders]

    def _light_data(self) -> tuple[list[Any], list[Any]]:
        graph, path = self.model.graph, _light(self.source)
        weights = {i.name for i in graph.initializer}
        given = [
            Runner.generate_dummy_data(x, seed=0, name=self.source.name)
            for x in graph.input
            if x.name not in weights
        ]
        expected = []
        for index in range(len(graph.output)):
            proto = onnx.TensorProto()
            file = path.with_name(f"{path.stem}_output_{index}.pb")
            proto.ParseFromString(file.read_bytes())
            expected.append(numpy_helper.to_array(proto))
        return given, expected


def _light(source: TestCase) -> Path:
    """The file of a `light_*` model, which comes with onnx."""
    return Path(onnx.__file__).parent.parent / source.url


def _read(folder: Path, kind: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    found: list[Any] = []
    for index in range(len(list(folder.glob(f"{kind}_*.pb")))):
        file = str(folder / f"{kind}_{index}.pb")
        Runner._load_proto(None, file, found, declared[index].type)  # type: ignore[arg-type]
    return found


def load_cases(categories: Sequence[str] = CATEGORIES) -> dict[str, Case]:
    """Every case by its name; those of nodes take seconds."""
    with np.errstate(all="ignore"):
        found = [
            Case(f"{category}/{source.name}", source)
            for category in categories
            for source in load_model_tests(kind=category)
        ]
    return {case.name: case for case in found}


def outcome(case: Case, device: str, random: bool = False) -> str:
    """What the file says of a case on "CPU" or "GPU"; a failure starts with "fail: "."""
    try:
        rep = backend.prepare(case.model, device)
        with np.errstate(all="ignore"):
            for given, expected in case.data_sets():
                compare(expected, list(rep.run(given)), case, random)
        return place(case, rep) if device == "GPU" else "pass"
    except Exception as error:
        return "fail: " + " ".join(f"{type(error).__name__}: {error}".split())[:300]


def compare(expected: Sequence[Any], got: Sequence[Any], case: Case, random: bool) -> None:
    """Raises: AssertionError if number, types, shapes or values of outputs differ."""
    assert len(got) == len(expected), f"{len(got)} values, {len(expected)} are due"
    for theirs, ours in zip(expected, got, strict=True):
        if theirs is None:
            assert ours is None
        elif isinstance(theirs, (list, tuple)):
            assert isinstance(ours, list), f"a {type(ours).__name__} where a list is due"
            compare(theirs, ours, case, random)
        elif random:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        else:
            Runner.assert_similar_outputs([theirs], [ours], case.rtol, case.atol)


def place(case: Case, rep: WgpuBackendRep) -> str:
    """Where the operator under test ran last."""
    placed = rep.node_placement()
    own = [device for op, _, device in placed if op == case.main]
    devices = set(own or [device for _, _, device in placed])
    if not devices:
        return "folded"
    return "gpu" if devices == {"gpu"} else "cpu"


def read_status() -> dict[str, tuple[str, str]]:
    """Name to what the file says for the CPU and for the GPU."""
    found = {}
    for name, cpu, gpu in _lines():
        assert name not in found, f"{name} is listed twice"
        found[name] = cpu, gpu
    return found


def _lines() -> Iterator[tuple[str, str, str]]:
    if not os.path.exists(STATUS_FILE):
        return
    for line in STATUS_FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, cpu, gpu = line.split(" | ")
            yield name, cpu, gpu


def write_status(status: Mapping[str, tuple[str, str]]) -> None:
    """Writes the file, cases in order of their names."""
    lines = [f"{name} | {cpu} | {gpu}\n" for name, (cpu, gpu) in sorted(status.items())]
    STATUS_FILE.write_text(HEADER + "".join(lines), encoding="utf-8")
