"""Explain: the report of plans, on the CPU and with kernels, as text and as data."""

from __future__ import annotations

import json

import numpy as np
import onnx

from engine.compiler import Options, compile_graph, optimise
from engine.costs import DeviceProfile
from engine.explain import Report, explain, size_text
from engine.importer import load_model
from engine.target import Target
from tests.runtime.models import parse

TEXT = """g (float[n,16] x) => (float[k] u, float[n,8] s) {
  m = MatMul(x, w)
  a = Add(m, c)
  r = Relu(a)
  u = Unique(r)
  s = Softmax(r)
}"""


def report(device: str = "gpu", binding: dict[str, int] | None = None) -> Report:
    """Explains a plan for a GPU that is never touched."""
    model = parse(TEXT.replace("(float[n,16] x)", "(float[n,16] x, float[16,8] w, float[8] c)"))
    del model.graph.input[1:]
    for name, shape in (("w", (16, 8)), ("c", (8,))):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    options = Options(device)  # type: ignore[arg-type]
    binding = binding or {"n": 100}
    passed = optimise(load_model(model).graph, options, binding)
    plan = compile_graph(passed, options, Target.baseline(), DeviceProfile.builtin(), binding)
    return explain(plan, passed, "Test GPU")


def test_nodes_say_where_they_run_and_why() -> None:
    rows = {r.op_type: r for r in report().nodes}
    assert {op for op, r in rows.items() if r.device == "gpu"} == {
        "MatMul",
        "Add",
        "Relu",
        "Softmax",
    }
    assert rows["Unique"].device == "cpu"
    assert "no GPU kernel for Unique" in rows["Unique"].reason
    assert rows["MatMul"].kernel == rows["Relu"].kernel != rows["Softmax"].kernel


def test_kernels_are_named_and_predicted_by_size() -> None:
    small, large = report(), report(binding={"n": 100_000})
    assert [k.label for k in small.kernels] == ["MatMul + Add + Relu", "Softmax"]
    assert len(small.kernels[0].origin) == 3
    for a, b in zip(small.kernels, large.kernels, strict=True):
        assert 0 < a.predicted_ms < b.predicted_ms
        assert a.shaders and max(a.shaders) < len(small.shaders)


def test_transfers_and_memory_have_bytes_and_weights_are_apart() -> None:
    found = report()
    moves = {(t.direction, t.value): t.nbytes for t in found.transfers}
    assert moves == {("upload", "x"): 6400, ("download", "r"): 3200, ("download", "s"): 3200}
    assert found.weights_nbytes == (16 * 8 + 8) * 4
    memory = found.memory
    assert 0 < memory["lower_bound"] <= memory["peak"] <= memory["no_reuse"]
    assert found.switches == 1


def test_the_summary_comes_last_and_is_short() -> None:
    found = report()
    text = found.to_text()
    assert text.endswith(found.summary())
    lines = found.summary().splitlines()
    assert len(lines) <= 12 and all(len(line) < 120 for line in lines)
    assert "nodes      5: 4 on the GPU, 1 on the CPU" in lines
    assert lines[-2] == "on the CPU because"
    assert "no GPU kernel for Unique" in lines[-1] and lines[-1].endswith("1 Unique")
    assert str(found) == text


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    lines = report("auto", {"n": 1}).summary().splitlines()
    where = lines.index("on the CPU because")
    assert any(
        line.startswith("  predicted to be faster there: 1 MatMul, 1 Add, 1 Relu")
        for line in lines[where:]
    )


def test_a_report_without_kernels_speaks_of_none() -> None:
    found = report("cpu")
    assert "kernels" not in found.to_text() and "transfers" not in found.to_text()
    assert found.shaders == () and found.wgsl() == ""


def test_json_has_everything_but_the_shaders() -> None:
    found = report()
    content = json.loads(found.to_json())
    assert content["device"] == "Test GPU"
    assert content["kernels"][0]["label"] == "MatMul + Add + Relu"
    assert content["binding"] == {"n": 100}
    assert content["passes"].keys() == found.passes.keys()
    assert "shaders" not in content


def test_shaders_are_listed_under_their_dispatches() -> None:
    found = report()
    text = found.wgsl()
    assert text.count("// shader ") == len(found.shaders)
    assert "// kernel 0: MatMul + Add + Relu (" in text
    assert text.count("fn main(") == len(found.shaders)


def test_passes_are_told_if_asked() -> None:
    found = report()
    text = found.to_text(passes=True)
    for name in (*found.passes, "fusion"):
        assert f"\n{name}: " in text
    assert "+ epilogue: Add" in text


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1 << 20, 3 << 19)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "1.5 MiB",
    ]
