"""Profiles survive JSON and refuse nonsense; work and times follow from sizes."""

from __future__ import annotations

import dataclasses
import json
from math import prod
from pathlib import Path

import onnx
import pytest

from engine import costs, dims, ops
from engine.costs import ASSUMED_SIZE, Sizes, Work
from engine.errors import EngineError, ShapeError
from engine.importer import load_model
from engine.ir import Graph, Node
from engine.ops import OpDef
from engine.passes.infer import infer
from engine.passes.symbols import dims_of
from engine.rates import DeviceProfile
from engine.target import Target
from engine.work import FAR_NBYTES, NEAR_NBYTES, CpuWork, GpuWork, Products, pass_ns
from tests.profiles import changed, round_profile
from tests.small_graphs import Builder

PROFILE = round_profile(
    launch_ns=10,
    submit_ns=100,
    fma_per_s=2_000_000_000,
    bytes_per_s=4_000_000_000,
    upload_latency_ns=1000,
    upload_bytes_per_s=1_000_000_000,
    readback_ns=2000,
    download_latency_ns=3000,
    download_bytes_per_s=500_000_000,
    flops_per_s=1_000_000_000,
    panel_bytes_per_s=1_000_000_000,
    row_bytes_per_s=1_000_000_000,
    cache_bytes_per_s=1_000_000_000,
    memory_bytes_per_s=500_000_000,
    node_ns=7,
    step_ns=2,
    product_ns=5,
)


def parsed(text: str) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}')
    return load_model(model).graph


def test_json_round_trip(tmp_path: Path) -> None:
    assert DeviceProfile.from_json(PROFILE.to_json()) == PROFILE
    (tmp_path / "p.json").write_text(PROFILE.to_json())
    assert DeviceProfile.load(tmp_path / "p.json") == PROFILE


@pytest.mark.parametrize("name", ["integrated", "lavapipe"])
def test_builtin_profiles_load(name: str) -> None:
    assert DeviceProfile.builtin(name).name
    assert DeviceProfile.builtin() == DeviceProfile.builtin("integrated")


def _without(part: str, field: str) -> str:
    fields = json.loads(PROFILE.to_json())
    del fields[part][field]
    return json.dumps(fields)


def _with(part: str, **changes: object) -> str:
    fields = json.loads(PROFILE.to_json())
    return json.dumps({**fields, part: {**fields[part], **changes}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[1]", "object with a name"),
        ('{"name": "x"}', r"missing \['cpu', 'gpu'\]"),
        ('{"name": "x", "gpu": 1, "cpu": 2}', "must be JSON objects"),
        (_without("gpu", "launch_ns"), r"missing \['launch_ns'\]"),
        (_with("cpu", speed=1), r"unknown \['speed'\]"),
        (_with("gpu", fma_per_s=0), "fma_per_s must be an integer of at least 1"),
        (_with("gpu", launch_ns=-1), "launch_ns must be an integer of at least 0"),
        (_with("cpu", node_ns=1.5), "node_ns must be an integer"),
        (_with("cpu", node_ns=True), "node_ns must be an integer"),
        (_with("sources", **{"gpu.speed": "a book"}), r"unknown figures \['gpu.speed'\]"),
        (_with("sources", **{"gpu.launch_ns": 1}), "sources must be texts"),
    ],
)
def test_damaged_profiles_are_refused(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        DeviceProfile.from_json(text)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngineError, match="not UTF-8"):
        DeviceProfile.load(tmp_path / "p.json")


def test_an_unknown_builtin_names_the_known_ones() -> None:
    with pytest.raises(EngineError, match=r"no device profile .abacus.; known are .*lavapipe"):
        DeviceProfile.named("abacus")


def test_a_profile_is_named_or_a_file(tmp_path: Path) -> None:
    assert DeviceProfile.named("lavapipe") == DeviceProfile.builtin("lavapipe")
    (tmp_path / "own.json").write_text(PROFILE.to_json())
    assert DeviceProfile.named(tmp_path / "own.json") == PROFILE
    with pytest.raises(EngineError, match="cannot be read"):
        DeviceProfile.named(tmp_path / "none.json")


def test_times_add_up_and_round_up() -> None:
    gpu, cpu = GpuWork(launches=2, fmas=3, nbytes=9), CpuWork(3, near=5)
    work = Work(gpu, cpu)
    assert costs.node_ns("gpu", work, PROFILE) == 2 * 10 + 2 + 3
    assert costs.node_ns("cpu", work, PROFILE) == 7 + 3 * 2 + 5
    assert costs.node_ns("cpu", dataclasses.replace(work, nodes=4), PROFILE) == 4 * 7 + 6 + 5
    assert costs.transfer_ns("upload", 8, PROFILE) == 1008
    assert costs.transfer_ns("download", 8, PROFILE) == 2016
    assert costs.fused_ns(9, PROFILE) == 2


def test_passes_slow_down_between_the_cache_and_memory() -> None:
    rates = PROFILE.cpu
    assert pass_ns(NEAR_NBYTES, rates) == NEAR_NBYTES
    assert pass_ns(FAR_NBYTES, rates) == 2 * FAR_NBYTES
    assert pass_ns(10 * FAR_NBYTES, rates) == 20 * FAR_NBYTES
    sizes = range(NEAR_NBYTES, FAR_NBYTES, NEAR_NBYTES)
    slowness = [pass_ns(n, rates) / n for n in sizes]
    assert slowness == sorted(slowness)


def test_products_with_a_vector_only_read_the_matrix() -> None:
    rates = PROFILE.cpu
    assert Products(3, 1, 10, 20).ns(rates) == 3 * (5 + 4 * 200)
    assert Products(1, 20, 10, 1).ns(rates) == 5 + 4 * 200
    assert Products(2, 10, 10, 10).ns(rates) == 2 * (5 + 2000 + 8 * 300)
    slow = changed(PROFILE, panel_bytes_per_s=10**8).cpu
    assert Products(1, 10, 10, 10).ns(slow) == 5 + 2000 + 8 * 300
    assert Products(1, 10, 10, 10, cold=True).ns(slow) == 5 + 2000 + 40 * 300


def test_work_adds_up() -> None:
    one = CpuWork(2, products=(Products(1, 2, 3, 4),), passes=(8,), gathers=1)
    assert one + CpuWork(1, near=3) == dataclasses.replace(one, steps=3, near=3)
    assert one.times(3).ns(PROFILE.cpu) <= 3 * one.ns(PROFILE.cpu), "times are rounded up once"
    assert one.times(3).products == one.products * 3


def test_work_counts_elements_at_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    product = OpDef(
        "Product",
        domain="test",
        lower=lambda v: (),
        cpu=lambda v: CpuWork(1, near=prod(v.shape(0))),  # type: ignore[arg-type]
        gpu=lambda v: GpuWork(2, fmas=v.shape(0)[0] * 1000),  # type: ignore[arg-type, operator]
    )
    view = OpDef("Look", domain="test", view=True)
    shaped = OpDef("Shaped", domain="test", shape_inputs=(1,), scratch=1)
    for op in (product, view, shaped):
        monkeypatch.setitem(ops._REGISTRY, (op.domain, op.op_type), [op])
    n = dims.symbol("n")
    b = Builder()
    b.input("x", (n, 4))
    b.input("ids", (3,), "int64")
    b.constant("sizes", [1, 2])
    b.node("Product", ("x", "x"), "p", (n, n), domain="test")
    b.node("Look", ("p",), "q", (n * n,), domain="test")
    b.node("Shaped", ("x", "sizes"), "s", (n,), "bool", domain="test")
    b.node("Gather", ("x", "ids"), "g", (3, 4), axis=0)
    b.node("Shape", ("x",), "shape", (2,), "int64")
    b.node("Mystery", ("x",), "m", None)
    b.node("Size", ("x",), "size", (), "int64", dims=ops.object_array(4 * n))
    graph = b.graph("q", "s", "g", "shape", "m", "size")
    sizes = Sizes(graph, {"n": 10})
    assert sizes.count("p") == 100 and sizes.shape("p") == (10, 10)
    assert (sizes.gpu_nbytes("ids"), sizes.cpu_nbytes("ids")) == (12, 24)
    found = costs.works(graph, sizes)
    assert found["p"] == Work(GpuWork(2, fmas=10_000), CpuWork(1, near=40))
    assert found["q"].free
    assert found["s"] == Work(GpuWork(2, strided=10), CpuWork(3, passes=(10 + 160,)))
    assert found["g"].gpu == GpuWork(1, gathers=12)
    assert found["g"].cpu.gathers == 3, "three rows are found by an index each"
    assert found["shape"].cpu.passes == (16,), "a shape is known without reading the content"
    assert found["m"] == Work(GpuWork(1), CpuWork(3, passes=(160,)))
    assert found["size"].free, "what is known from the sizes is not computed"


def test_a_depthwise_kernel_that_is_not_unrolled_loads_more() -> None:
    loads = []
    for dilation in (1, 2):
        graph = parsed(
            f"""g (float[1, 8, 32, 32] x, float[8, 1, 3, 3] w) => (float[1, 8, 32, 32] y) {{
                y = Conv<group=8, dilations=[{dilation}, {dilation}], auto_pad="SAME_UPPER">(x, w)
            }}"""
        )
        graph = infer(graph).graph
        (work,) = costs.works(graph, Sizes(graph), Target.baseline()).values()
        loads.append(work.gpu.loads)
    assert loads[1] > 2 * loads[0] > 0


def test_a_dispatch_moves_what_it_takes_from_a_table_not_the_table() -> None:
    graph = parsed(
        "g (float[1000,8] t, int64[n] i, float[n,8] x) => (float[n,8] y, float[1000,8] z)"
        "{ r = Gather(t, i) y = Add(r, x) z = Relu(t) }"
    )
    graph = infer(graph).graph
    gather, add, relu = graph.nodes
    at = {"n": 5}

    def moved(*nodes: Node) -> int:
        flops_and_nbytes = costs.dispatch_work(graph, nodes, ["t", "i", "x", "y"])
        return dims.evaluate(flops_and_nbytes[1], at)

    assert moved(gather, add) == 4 * (40 + 5 + 40 + 40)
    assert moved(gather, add, relu) == 4 * (8000 + 5 + 40 + 40)
    assert dims.evaluate(costs.dispatch_work(graph, [gather], ["t"])[1], {"n": 5000}) == 4 * 8000


def test_a_body_counts_as_often_as_it_runs() -> None:
    graph = parsed(
        """g (bool c, float[8] x) => (float[8] y) {
            y = If <
                then_branch = a () => (float[8] t) { t = Abs(x) },
                else_branch = b () => (float[8] e) { s = Abs(x) r = Neg(s) e = Exp(r) }
            > (c)
        }"""
    )
    (node,) = graph.nodes
    assert costs.works(graph, Sizes(graph))[node.key].nodes == 1 + 3


def test_unbound_symbols_are_assumed() -> None:
    b = Builder()
    b.input("x", (dims.symbol("n"), 2))
    graph = b.graph("x")
    assert Sizes(graph).count("x") == 2 * ASSUMED_SIZE
    assert Sizes(graph, {"m": 1}).count("x") == 2 * ASSUMED_SIZE
    assert Sizes(graph, {"n": 3}).count("x") == 6


def test_sizes_that_are_assumed_need_not_fit() -> None:
    text = """g (float[2, m] x, float[17, k] w) => (float[k] y) {
        n = NonZero(x)  f = Cast<to = 1>(n)  y = Einsum<equation = "ij,jk->k">(f, w) }"""
    graph = infer(parsed(text)).graph
    works = costs.works(graph, Sizes(graph, {"m": 4, "k": 3}))
    assert works["y"].gpu.launches >= 1
    with pytest.raises(ShapeError, match="do not broadcast"):
        (symbol,) = {s for v in graph.values.values() for s in dims_of(v.type)} - {"m", "k"}
        costs.works(graph, Sizes(graph, {"m": 4, "k": 3, symbol: 16}))
