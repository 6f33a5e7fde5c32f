"""Explain: the report of plans, on the CPU and with kernels, as text and as data."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.compiler import compile_graph, optimise
from engine.costs import DeviceProfile
from engine.explain import BodyRow, Changes, Measured, Price, Report, explain, size_text
from engine.explain.changes import changes_text, full_changes_text, grouped
from engine.explain.sizes import count_text, ms_text, share_text, short
from engine.explain.text import PAGE, price_text
from engine.importer import load_model
from engine.options import Options
from engine.target import Target
from tests.profiles import changed
from tests.runtime.models import parse

TEXT = """g (float[n,16] x) => (float[k] u, float[n,8] s) {
  m = MatMul(x, w)
  a = Add(m, c)
  r = Relu(a)
  u = Unique(r)
  s = Softmax(r)
}"""

BETWEEN = """g (float[n,64] x) => (float[n,64] y) {
  a = Exp(x)
  d = Cast<to = 11>(a)
  e = Erf(d)
  f = Cast<to = 1>(e)
  t = Tanh(f)
  y = Softmax(t)
}"""
"""Three nodes in float64 between others."""


def report(
    device: str = "gpu",
    binding: dict[str, int] | None = None,
    text: str = TEXT,
    measured: Measured | None = None,
    profile: DeviceProfile | None = None,
    decided_at: dict[str, int] | None = None,
) -> Report:
    """Explains a plan for a GPU that is never touched, at sizes that decided it or at others."""
    weighted = text.replace("(float[n,16] x)", "(float[n,16] x, float[16,8] w, float[8] c)")
    model = parse(weighted)
    if weighted != text:
        del model.graph.input[1:]
        for name, shape in (("w", (16, 8)), ("c", (8,))):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    options = Options(device)  # type: ignore[arg-type]
    binding = binding or {"n": 100}
    decided_at = decided_at or binding
    passed = optimise(load_model(model).graph, options, decided_at)
    profile = profile or DeviceProfile.builtin()
    plan = compile_graph(passed, options, Target.baseline(), profile, decided_at)
    return explain(plan, passed, "Test GPU", options, measured, binding=binding)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_figures_are_for_the_sizes_of_the_call(device: str) -> None:
    fresh = report(device, {"n": 5000})
    kept = report(device, {"n": 5000}, decided_at={"n": 3})
    assert kept.decided_at == {"n": 3} and fresh.decided_at == {"n": 5000}
    assert replace(kept, decided_at=fresh.decided_at) == fresh
    assert "sizes      n=5000; planned in an earlier call, with n=3\n" in kept.summary()
    assert "planned in" not in fresh.summary()


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
    assert rows["MatMul"].kernels == rows["Relu"].kernels != rows["Softmax"].kernels
    assert rows["Relu"].fused_into == "MatMul + Add + Relu" and rows["Softmax"].fused_into == ""


def test_kernels_are_named_and_predicted_by_size() -> None:
    small, large = report(), report(binding={"n": 100_000})
    assert [k.label for k in small.kernels] == ["MatMul + Add + Relu", "Softmax"]
    assert len(small.kernels[0].origin) == 3
    for a, b in zip(small.kernels, large.kernels, strict=True):
        assert 0 < a.predicted_ms < b.predicted_ms
        assert a.shaders and max(a.shaders) < len(small.shaders)


def test_fused_nodes_share_the_time_of_their_kernel() -> None:
    found = report()
    rows = {r.op_type: r for r in found.nodes}
    assert rows["MatMul"].predicted_ms == rows["Relu"].predicted_ms == found.kernels[0].predicted_ms
    assert (rows["Unique"].predicted_ms or 0) > 0 and rows["Unique"].measured_ms is None


def test_subgraphs_are_runs_of_one_device() -> None:
    found = report(text=BETWEEN)
    assert [(s.device, s.nodes, s.kernels) for s in found.subgraphs] == [
        ("gpu", 1, 1),
        ("cpu", 3, 0),
        ("gpu", 2, 1),
    ]
    assert found.switches == 2
    assert [n.subgraph for n in found.nodes] == [0, 1, 1, 1, 2, 2]
    moves = [(t.direction, t.value, t.subgraph) for t in found.transfers]
    assert moves == [
        ("upload", "x", 0),
        ("download", "a", 0),
        ("upload", "f", 2),
        ("download", "y", 2),
    ]


def test_transfers_and_memory_have_bytes_and_weights_are_apart() -> None:
    found = report()
    moves = {(t.direction, t.value): t.nbytes for t in found.transfers}
    assert moves == {("upload", "x"): 6400, ("download", "r"): 3200, ("download", "s"): 3200}
    assert found.moved("download") == (2, 6400)
    assert found.weights_nbytes == (16 * 8 + 8) * 4
    memory = found.memory
    assert 0 < memory["lower_bound"] <= memory["peak"] <= memory["no_reuse"]
    assert found.switches == 1


def test_the_price_of_a_reason_is_that_of_another_placement() -> None:
    found = report(text=BETWEEN)
    (price,) = found.prices
    nbytes = 2 * 100 * 64 * 4
    assert (price.transfers, price.nbytes, price.moved) == (2, nbytes, 3)
    assert price.saved_ms > 0
    lines = found.summary().splitlines()
    assert lines[-2] == "  no kernel computes with float64: 2 Cast, 1 Erf"
    start = "    supporting Cast, Erf on the GPU would remove 2 transfers (50.0 KiB)"
    assert lines[-1].startswith(f"{start} and save about ")


def test_a_price_can_be_nothing_or_more_than_nothing() -> None:
    slow = changed(DeviceProfile.builtin(), ops_per_s=1000, fma_per_s=1000, strided_per_s=1000)
    (dear,) = report(text=BETWEEN, profile=slow).prices
    assert dear.saved_ms < 0 < dear.transfers
    assert price_text(dear, "Erf").endswith(" longer")
    (none,) = report("auto", text=BETWEEN, profile=slow).prices
    assert (none.saved_ms, none.moved, none.transfers) == (0, 0, 0)
    assert price_text(none, "Erf").endswith("would change nothing: the CPU is faster at it")
    assert report("cpu", text=BETWEEN).prices == ()


def test_prices_say_what_moves_in_words() -> None:
    more = price_text(Price("r", 2.0, 1, -2048, 3), "1 Erf")
    assert more.endswith("would remove 1 transfer but move 2.0 KiB more and save about 2.00 ms")
    assert "add 2 transfers (1.0 KiB) and take as long as now" in price_text(
        Price("r", 0.0, -2, -1024, 3), "1 Erf"
    )


def test_control_flow_has_no_price() -> None:
    text = """g (float[n] x, bool b) => (float[n] y) {
      z = Exp(x)
      y = If(b) <then_branch = t () => (float[n] p) { p = Neg(z) },
                 else_branch = e () => (float[n] q) { q = Abs(z) }>
    }"""
    found = report(text=text)
    (row,) = [n for n in found.nodes if n.op_type == "If"]
    assert row.body_nodes == 2 and "control flow" in row.reason
    assert found.prices == ()


def test_the_summary_comes_first_and_last_and_is_short() -> None:
    found = report()
    text = found.to_text()
    assert text.startswith(found.summary())
    lines = found.summary().splitlines()
    assert len(lines) <= 14 and all(len(line) < 120 for line in lines)
    assert "nodes      5: 4 on the GPU, 1 on the CPU" in lines
    assert "subgraphs  1 on the GPU, 1 on the CPU, 1 switch between them; 2 kernels" in lines
    assert any(line.startswith("GPU share  80 % of the nodes that compute, ") for line in lines)
    assert lines[-3] == "on the CPU because"
    assert "no GPU kernel for Unique" in lines[-2] and lines[-2].endswith("1 Unique")
    assert str(found) == text
    assert text.count("device     Test GPU") == 1
    nodes = "\n".join(f"x{i + 1} = Exp(x{i})" for i in range(PAGE + 1))
    many = report(text=f"g (float[n] x0) => (float[n] x{PAGE + 1}) {{ {nodes} }}")
    assert many.to_text().startswith(many.summary())
    assert many.to_text().endswith("\n\n" + many.summary())


def test_the_nodes_are_listed_by_subgraph() -> None:
    lines = report(text=BETWEEN).to_text().splitlines()
    where = [i for i, line in enumerate(lines) if line.startswith("subgraph ")]
    assert lines[where[0]].startswith("subgraph 0: GPU, 1 node in 1 kernel; predicted ")
    assert lines[where[0] + 1] == "  → upload x (25.0 KiB)"
    assert lines[where[0] + 3] == "  ← download a (25.0 KiB)"
    (erf,) = [line for line in lines[where[1] : where[2]] if " Erf " in line]
    assert erf.endswith("no kernel computes with float64 ('d')")


def test_a_fused_node_says_into_what() -> None:
    text = report().to_text()
    (first,) = [line for line in text.splitlines() if "  MatMul " in line]
    assert first.endswith("kernel 0: MatMul + Add + Relu")
    (second,) = [line for line in text.splitlines() if "  Relu " in line]
    assert second.strip().startswith("″") and second.endswith("fused into kernel 0")


def test_measured_times_stand_beside_the_predicted_ones() -> None:
    found = report(measured=Measured(5, "timestamps", 4.5, {0: 0.25, 1: 0.5}, {"u": 2.0}))
    rows = {r.op_type: r.measured_ms for r in found.nodes}
    assert rows == {"MatMul": 0.25, "Add": 0.25, "Relu": 0.25, "Unique": 2.0, "Softmax": 0.5}
    assert [s.measured_ms for s in found.subgraphs] == [0.75, 2.0]
    assert (
        "measured   4.50 ms a call, median of 5 (kernels 0.750 ms by the device's clock, "
        "nodes on the CPU 2.00 ms)" in found.summary().splitlines()
    )
    (line,) = [line for line in found.to_text().splitlines() if "  Softmax " in line]
    assert line.split()[2:4] == ["0.500", "ms"]


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    lines = report("auto", {"n": 1}).summary().splitlines()
    where = lines.index("on the CPU because")
    assert any(
        line.startswith("  predicted to be faster on the CPU: 1 MatMul, 1 Add, 1 Relu")
        for line in lines[where:]
    )


def test_a_report_without_kernels_speaks_of_none() -> None:
    found = report("cpu")
    assert "kernels" not in found.to_text() and "transfers" not in found.to_text()
    assert found.shaders == () and found.wgsl() == ""


def test_a_prompt_shows_a_line_of_a_report() -> None:
    assert repr(report()) == (
        "<Report on 5 nodes: 4 on the GPU, 1 on the CPU; print its summary() or to_text()>"
    )


def test_json_has_a_schema_and_everything_but_the_shaders() -> None:
    found = report()
    content = json.loads(found.to_json())
    assert (content["schema"], content["version"]) == ("onnx-wgpu explain", 2)
    assert content["device"] == "Test GPU" and content["mode"] == "gpu"
    assert content["kernels"][0]["label"] == "MatMul + Add + Relu"
    assert content["binding"] == content["decided_at"] == {"n": 100}
    assert content["changes"].keys() == found.changes.keys()
    assert content["values"]["x"] == {
        "dtype": "float32",
        "shape": ["n", 16],
        "sizes": [100, 16],
        "constant": False,
    }
    assert content["values"]["u"]["sizes"] is None
    summary = content["summary"]
    assert (summary["gpu_nodes"], summary["cpu_nodes"], summary["gpu_node_share"]) == (4, 1, 0.8)
    assert 0 < summary["gpu_work_share"] < 1
    (reason,) = content["reasons"]
    assert reason["nodes"] == ["u"] and reason["ops"] == {"Unique": 1}
    assert reason["if_supported"].keys() == {"saved_ms", "transfers", "nbytes", "moved"}
    assert "shaders" not in content


def test_shaders_are_listed_under_their_dispatches() -> None:
    found = report()
    text = found.wgsl()
    assert text.count("// shader ") == len(found.shaders)
    assert "// kernel 0: MatMul + Add + Relu (" in text
    assert text.count("fn main(") == len(found.shaders)


CHANGES = {
    "fold": Changes(tuple(f"Conv 'c{i}' + Mul 'm{i}'" for i in range(30)), ()),
    "chains": Changes((), ("Reshape 'r' stays: its target is [2, 3]",)),
    "idle": Changes((), ()),
}


def test_passes_are_a_line_each() -> None:
    lines = changes_text(CHANGES)
    assert lines[1:] == [
        "  fold      30 applied: Conv + Mul (30 times)",
        "  chains     0 applied, 1 nearly: Reshape 'r' stays: its target is [2, 3]",
        "  nothing to do for idle",
    ]
    assert changes_text({"idle": Changes((), ())}) == ["passes     nothing to do"]
    every = report().to_text().splitlines()
    assert any(line.startswith("  fusion ") for line in every)


def test_all_that_passes_did_is_grouped() -> None:
    lines = full_changes_text(CHANGES)
    assert lines[0] == "fold: 30 applied, 0 nearly"
    assert lines[1] == "  + 30 times: Conv '…' + Mul '…'"
    assert all(len(line) <= 108 for line in lines)
    joined = " ".join(line.strip() for line in lines)
    assert all(f"c{i} ← m{i}" in joined for i in range(30))
    assert "  - Reshape 'r' stays: its target is [2, 3]" in lines
    assert "+ epilogue: Add" in report().to_text(passes=True)


def test_lines_that_differ_in_names_shapes_and_numbers_are_alike() -> None:
    lines = ["a 'x' of [1, 2] at 3.5", "b 'x'", "a 'y' of [n, 7] at -2e-3", "c 'p', 'q'", "c 'p'"]
    assert [members for _, members in grouped(lines)] == [
        [lines[0], lines[2]],
        [lines[3], lines[4]],
        [lines[1]],
    ]


def test_quantities_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1 << 20, 3 << 19)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "1.5 MiB",
    ]
    assert [ms_text(x) for x in (0.0421, 7.714, 201.4)] == ["0.042 ms", "7.71 ms", "201 ms"]
    assert [share_text(a, 1000) for a in (0, 1000, 999.9, 0.1, 920, 995)] == [
        "0 %",
        "100 %",
        "99.9 %",
        "0.1 %",
        "92 %",
        "99.5 %",
    ]
    assert share_text(0, 0) == "0 %"
    assert short("abcdefghij", 5) == "ab…ij" and short("abc", 5) == "abc"
    assert [count_text(n, w) for n, w in ((1, "node"), (2, "node"), (2, "switch"))] == [
        "1 node",
        "2 nodes",
        "2 switches",
    ]


def test_every_field_of_the_json_is_documented() -> None:
    text = (Path(__file__).parent.parent / "docs" / "explain.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE))
    rows = {name: row for names, row in table.items() for name in re.findall(r"`(\w+)`", names)}
    content = json.loads(
        report(text=BETWEEN, measured=Measured(1, "host", 1.0, {}, {})).to_json(True)
    )
    assert rows.keys() == content.keys()
    inside = {
        name: content[name] for name in ("summary", "measured") if isinstance(content[name], dict)
    }
    inside |= {n: content[n][0] for n in ("subgraphs", "nodes", "kernels", "transfers", "reasons")}
    inside["values"] = content["values"]["x"]
    inside["changes"] = content["changes"]["fusion"]
    inside["bodies"] = {field.name: None for field in fields(BodyRow)}
    inside["price"] = content["reasons"][0]["if_supported"]
    for name, found in inside.items():
        told = set(re.findall(r"`(\w+)`", rows["reasons" if name == "price" else name]))
        assert told >= found.keys(), (name, found.keys() - told)
