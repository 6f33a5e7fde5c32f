"""The split is a cheapest one, says why, and does what the caller demands."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import choice, ops
from engine.costs import DeviceProfile
from engine.dims import at_least, symbol
from engine.errors import UnsupportedOpError
from engine.ir import Graph
from engine.ops import NodeView, OpDef, Support
from engine.partition import Partition, check_all_gpu, checked_inputs, partition
from engine.placement import CostModel, build_cost_model, minimum_cut
from engine.ranges import ranges
from engine.support import gpu_support
from engine.target import Target
from engine.work import CpuWork, GpuWork
from tests.own_ops import registered
from tests.profiles import changed, round_profile
from tests.small_graphs import Builder

# A byte takes 1 ns on the way, an operation 1 ns on the GPU and 100 ns on the CPU.
PROFILE = round_profile(
    launch_ns=100,
    submit_ns=50,
    ops_per_s=1_000_000_000,
    bytes_per_s=1_000_000_000,
    upload_latency_ns=200,
    upload_bytes_per_s=1_000_000_000,
    readback_ns=100,
    download_latency_ns=300,
    download_bytes_per_s=1_000_000_000,
    functions_per_s=10_000_000,
    cache_bytes_per_s=1_000_000_000,
    memory_bytes_per_s=1_000_000_000,
    node_ns=10,
)


def moved(view: NodeView) -> int:
    """Bytes that a node reads and writes."""
    values = (*view.node.reads, *view.node.writes)
    sizes = [view.graph.tensor(name).static_shape[0] for name in values]  # type: ignore
    return 4 * sum(sizes)


def gpu_work(view: NodeView) -> GpuWork:
    return GpuWork(1, ops=view.attr("flops", 0), nbytes=moved(view))


def cpu_work(view: NodeView) -> CpuWork:
    return CpuWork(0, functions=view.attr("flops", 0), passes=(moved(view),))


OPS = (
    OpDef("Calc", domain="test", lower=lambda v: (), cpu=cpu_work, gpu=gpu_work),
    OpDef("Look", domain="test", view=True),
    OpDef("Host", domain="test", cpu=cpu_work),
)


@pytest.fixture(autouse=True, scope="module")
def own_ops() -> Iterator[None]:
    with registered(OPS):
        yield


def calc(b: Builder, inputs: tuple[str, ...], output: str, flops: int, op: str = "Calc") -> str:
    return b.node(op, inputs, output, (4,), domain="test", flops=flops)


def split(
    graph: Graph, profile: DeviceProfile = PROFILE, margin: float = 0, **options: object
) -> Partition:
    """`margin`: what a GPU that is no software has to save."""
    support = gpu_support(graph, Target.baseline(), ranges=ranges(graph))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "MARGIN", margin)
        return partition(graph, support, profile, **options)  # type: ignore


def devices(found: Partition) -> dict[str, str]:
    return {key: verdict.device for key, verdict in found.verdicts.items()}


def chain(*steps: tuple[str, int], inputs: int = 1) -> Graph:
    """x0 -> n0 -> n1 -> ... with (operator, flops) each; the last is returned."""
    b = Builder()
    value = b.input("x", (4,))
    for i, (op, flops) in enumerate(steps):
        value = calc(b, (value,), f"n{i}", flops, op)
    return b.graph(value)


def test_the_middle_of_a_chain_goes_to_the_gpu() -> None:
    found = split(chain(("Host", 1), ("Calc", 900), ("Calc", 900), ("Host", 1)))
    assert devices(found) == {"n0": "cpu", "n1": "gpu", "n2": "gpu", "n3": "cpu"}
    assert [(c.value, c.direction, c.nbytes) for c in found.crossings] == [
        ("n0", "upload", 16),
        ("n2", "download", 16),
    ]
    host = 2 * (10 + 100 + 32)
    gpu = 2 * (100 + 900 + 32) + 50 + 216 + 316
    assert found.predicted_ms == pytest.approx((host + gpu) / 1e6)
    assert found.all_cpu_ms == pytest.approx((host + 2 * (10 + 90_000 + 32)) / 1e6)
    assert found.all_gpu_ms == found.predicted_ms
    assert found.verdicts["n0"].reason == "there is no GPU kernel for test:Host-23"
    assert found.nbytes("upload") == found.nbytes("download") == 16


def test_two_islands_and_cheap_work_between_them() -> None:
    steps = [("Calc", 900), ("Host", 1), ("Calc", 0), ("Host", 1), ("Calc", 900)]
    found = split(chain(*steps))
    assert list(devices(found).values()) == ["gpu", "cpu", "cpu", "cpu", "gpu"]
    reason = found.verdicts["n2"].reason
    assert reason == (
        "predicted 0.000 ms here, 0.000 ms on the GPU and 0.001 ms more for transfers and waits"
    )


def test_a_cheap_step_between_gpu_nodes_stays_there() -> None:
    found = split(chain(("Calc", 900), ("Calc", 0), ("Calc", 900)))
    assert set(devices(found).values()) == {"gpu"}


def test_small_work_stays_on_the_cpu_with_figures() -> None:
    graph = chain(("Calc", 2))
    found = split(graph, changed(PROFILE, launch_ns=50_000, readback_ns=90_000))
    assert found.verdicts["n0"].device == "cpu"
    assert found.verdicts["n0"].reason == (
        "predicted 0.000 ms here, 0.050 ms on the GPU and 0.090 ms more for transfers and waits"
    )
    assert found.crossings == ()
    assert found.predicted_ms == found.all_cpu_ms < found.all_gpu_ms


def test_fusion_flips_the_decision() -> None:
    """Three steps cost 3 * (100 + 32) + 266 + 316 on the GPU and 3 * (42 + 200) on the CPU."""
    graph = chain(("Calc", 2), ("Calc", 2), ("Calc", 2))
    assert set(devices(split(graph)).values()) == {"cpu"}
    fused = split(graph, may_fuse=lambda a, b: True)
    assert set(devices(fused).values()) == {"gpu"}
    assert fused.predicted_ms == pytest.approx((3 * 134 - 2 * (100 + 32) + 382) / 1e6)


def test_fused_launches_are_saved_on_a_forest() -> None:
    b = Builder()
    b.input("x", (4,))
    calc(b, ("x",), "top", 1)
    calc(b, ("top",), "left", 1)
    calc(b, ("top",), "right", 1)
    calc(b, ("left", "right"), "bottom", 1)
    graph = b.graph("bottom")
    support = dict.fromkeys(("top", "left", "right", "bottom"), Support(True))
    model = build_cost_model(graph, support, {}, PROFILE, may_fuse=lambda a, b: True)
    assert [(s.first, s.second, s.saved_ns) for s in model.savings] == [
        (0, 1, 100 + 16),
        (0, 2, 100 + 16),
        (1, 3, 100 + 32),
        (2, 3, 32),
    ]


def test_two_kernels_never_become_one() -> None:
    graph = chain(*[("Calc", 1)] * 5)
    keys = [n.key for n in graph.nodes]
    model = build_cost_model(
        graph,
        dict.fromkeys(keys, Support(True)),
        {},
        PROFILE,
        may_fuse=lambda a, b: True,
        anchors=("n0", "n2", "n4"),
    )
    assert [(s.first, s.second) for s in model.savings] == [(0, 1), (2, 3)]


def test_a_value_read_by_two_cpu_nodes_crosses_once() -> None:
    b = Builder()
    b.input("x", (4,))
    calc(b, ("x",), "y", 900)
    calc(b, ("y",), "a", 1, "Host")
    calc(b, ("y",), "b", 1, "Host")
    found = split(b.graph("a", "b", "y"))
    assert devices(found)["y"] == "gpu"
    assert [(c.value, c.direction) for c in found.crossings] == [("x", "upload"), ("y", "download")]
    assert found.predicted_ms == pytest.approx((1032 + 2 * 142 + 50 + 216 + 316) / 1e6)


def test_an_input_read_by_two_gpu_nodes_is_uploaded_once_and_constants_never() -> None:
    b = Builder()
    b.input("x", (4,))
    b.constant("w", [1, 2, 3, 4], "float32")
    calc(b, ("x", "w"), "a", 900)
    calc(b, ("x", "w"), "b", 900)
    found = split(b.graph("a", "b"))
    assert [(c.value, c.direction) for c in found.crossings] == [
        ("x", "upload"),
        ("a", "download"),
        ("b", "download"),
    ]


def test_views_cost_nothing_and_follow_their_neighbours() -> None:
    graph = chain(("Look", 0), ("Calc", 900), ("Look", 0), ("Calc", 900), ("Look", 0))
    found = split(graph)
    assert set(devices(found).values()) == {"gpu"}
    bare = split(chain(("Calc", 900), ("Calc", 900)))
    assert found.predicted_ms == bare.predicted_ms
    host = split(chain(("Host", 1), ("Look", 0), ("Host", 1)))
    assert devices(host)["n1"] == "cpu"
    assert host.verdicts["n1"].reason == "it is another view of a value that is on the CPU"


def test_views_alone_need_no_submit() -> None:
    graph = chain(("Look", 0), ("Look", 0))
    model = build_cost_model(graph, dict.fromkeys(("n0", "n1"), Support(True)), {}, PROFILE)
    assert model.total_ns({0, 1}) == 216 + 116
    assert model.total_ns(frozenset()) == 0


def test_forced_devices() -> None:
    graph = chain(("Host", 1), ("Calc", 0), ("Calc", 0))
    assert list(devices(split(graph)).values()) == ["cpu", "cpu", "cpu"]
    forced = split(graph, device="gpu")
    assert list(devices(forced).values()) == ["cpu", "gpu", "gpu"]
    assert forced.predicted_ms == forced.all_gpu_ms > forced.all_cpu_ms
    big = chain(("Host", 1), ("Calc", 9000))
    refused = split(big, device="cpu")
    assert list(devices(refused).values()) == ["cpu", "cpu"]
    assert refused.verdicts["n1"].reason == "device='cpu' was asked for"
    assert refused.verdicts["n0"].reason == "there is no GPU kernel for test:Host-23"


def test_require_gpu_lists_nodes_and_reasons() -> None:
    check_all_gpu(split(chain(("Calc", 900), ("Look", 0))))
    with pytest.raises(UnsupportedOpError) as caught:
        check_all_gpu(split(chain(("Calc", 900), ("Host", 1), ("Calc", 0))))
    message = str(caught.value)
    assert "2 of 3 nodes run on the CPU" in message
    assert "  there is no GPU kernel for test:Host-23: 1 Host\n    node_1\n" in message
    assert re.search(r"  predicted .* on the GPU.*: 1 Calc\n    node_2\n", message)
    assert "node_0" not in message


def test_guards_come_from_gpu_nodes_only() -> None:
    graph = chain(("Calc", 900), ("Calc", 0), ("Host", 0))
    ask = {key: at_least(symbol(key), 1) for key in ("n0", "n1", "n2")}
    support = {key: Support(key != "n2", "no", (guard,)) for key, guard in ask.items()}
    found = partition(graph, support, PROFILE)
    assert devices(found)["n0"] == "gpu"
    placed = [key for key in ask if devices(found)[key] == "gpu"]
    assert found.guards == tuple(ask[key] for key in placed)


def test_checked_inputs_are_those_the_gpu_relies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    take = OpDef("Take", domain="test", lower=lambda v: (), dtypes=frozenset({"int64"}))
    monkeypatch.setitem(ops._REGISTRY, ("test", "Take"), [take])
    b = Builder()
    b.input("ids", (4,), "int64")
    b.input("other", (4,), "int64")
    b.constant("axes", [0])
    b.node("Unsqueeze", ("ids", "axes"), "wide", (1, 4), "int64")
    b.node("Take", ("wide",), "y", (4,), domain="test")
    b.node("Host", ("other",), "z", (4,), "int64", domain="test")
    graph = b.graph("y", "z")
    found = split(graph, device="gpu")
    assert devices(found)["y"] == "gpu"
    assert checked_inputs(graph, found, ranges(graph)) == ("ids",)


# --- certainty ---


def test_the_gpu_has_to_save_a_fair_share() -> None:
    """900 operations take 90 us on the CPU and 1.2 us on the GPU; three take 0.342 and 0.328."""
    graph, clear = chain(("Calc", 3)), chain(("Calc", 900))
    near = changed(PROFILE, launch_ns=1, submit_ns=0, upload_latency_ns=160)
    assert devices(split(graph, near)) == {"n0": "gpu"}
    found = split(graph, near, margin=0.1)
    assert devices(found) == {"n0": "cpu"}
    assert found.decision.startswith("the CPU: the GPU would save too little to be certain")
    chosen = split(clear, near, margin=0.1)
    assert devices(chosen) == {"n0": "gpu"}
    assert chosen.decision.startswith("the GPU, ") and "times as fast as the CPU" in chosen.decision


def test_an_island_that_saves_little_goes_under() -> None:
    steps = [("Calc", 900), ("Host", 1), ("Calc", 6), ("Host", 1), ("Calc", 900)]
    graph = chain(*steps)
    profile = changed(PROFILE, launch_ns=50)
    assert list(devices(split(graph, profile)).values()) == ["gpu", "cpu", "gpu", "cpu", "gpu"]
    found = split(graph, profile, margin=0.1)
    assert list(devices(found).values()) == ["gpu", "cpu", "cpu", "cpu", "gpu"]
    assert found.decision.startswith("the GPU for nearly all, ")
    slow = split(graph, changed(PROFILE, launch_ns=9000), margin=0.1)
    assert list(devices(slow).values()) == ["gpu", "cpu", "cpu", "cpu", "gpu"]
    assert slow.decision.startswith("a split, ")


def test_a_slow_gpu_is_left_in_words() -> None:
    software = dataclasses.replace(Target.baseline(), software=True)
    slow = changed(PROFILE, ops_per_s=1_000_000)
    graph = chain(("Calc", 900))
    found = split(graph, slow, target=software)
    assert devices(found) == {"n0": "cpu"}
    assert found.decision == (
        "the CPU: the GPU would take 10.0 times as long (0.901 ms with all that can be on the GPU, "
        "0.09 ms on the CPU alone); this GPU is software that runs on the same CPU"
    )
    large = split(chain(("Calc", 900_000)), slow, target=software)
    assert large.decision.endswith(
        "(900 ms with all that can be on the GPU, 90 ms on the CPU alone); "
        "this GPU is software that runs on the same CPU"
    )
    assert split(chain(("Host", 1))).decision.startswith("the CPU: no node that computes")
    assert split(graph, device="gpu").decision == "the GPU wherever it can, as was asked for"
    assert split(graph, device="cpu").decision == "the CPU, as was asked for"


def test_a_missing_gpu_is_the_reason() -> None:
    found = split(chain(("Calc", 4), ("Host", 1)), device="cpu", no_gpu=True)
    assert found.decision == "the CPU: no GPU adapter was found"
    assert found.verdicts["n0"].reason == "no GPU adapter was found"
    assert found.verdicts["n1"].reason != found.verdicts["n0"].reason


# --- optimality ---


@st.composite
def models(draw: st.DrawFn) -> tuple[CostModel, Graph, DeviceProfile]:
    """A random graph of up to 9 nodes, with everything that costs drawn too."""
    b = Builder()
    values = [b.input(f"x{i}", (draw(st.integers(1, 60)),)) for i in range(draw(st.integers(1, 2)))]
    support, dead = {}, set(values)
    for i in range(draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
        op = draw(st.sampled_from(["Calc", "Calc", "Calc", "Look", "Host"]))
        name = b.node(
            op,
            inputs,
            f"n{i}",
            (draw(st.integers(1, 60)),),
            domain="test",
            flops=draw(st.integers(0, 12)),
        )
        support[name] = Support(op != "Host")
        values.append(name)
        dead = (dead - set(inputs)) | {name}
    extra = draw(st.lists(st.sampled_from(values), max_size=2))
    graph = b.graph(*dict.fromkeys([*sorted(dead), *extra]))
    pairs = draw(st.sets(st.tuples(st.sampled_from(values), st.sampled_from(values)), max_size=12))
    readback = draw(st.integers(0, 200))
    profile = changed(
        PROFILE,
        launch_ns=draw(st.integers(0, 300)),
        submit_ns=draw(st.integers(0, 400)),
        upload_latency_ns=draw(st.integers(0, 300)),
        readback_ns=readback,
        download_latency_ns=readback + draw(st.integers(0, 200)),
        call_ns=draw(st.integers(0, 99)),
    )
    return (
        build_cost_model(
            graph,
            support,
            {},
            profile,
            may_fuse=lambda first, second: (first.key, second.key) in pairs,
        ),
        graph,
        profile,
    )


def cost_by_hand(model: CostModel, graph: Graph, profile: DeviceProfile, gpu: set[str]) -> int:
    """What a placement costs, walked value by value from the definition."""

    def nbytes(name: str) -> int:
        return 4 * graph.tensor(name).shape[0]  # type: ignore

    rates, total = profile.gpu, profile.cpu.call_ns
    for node in graph.nodes:
        if node.op_type == "Look":
            continue
        moved = sum(map(nbytes, (*node.reads, *node.writes)))
        flops = node.attrs["flops"]
        total += rates.launch_ns + flops + moved if node.key in gpu else 10 + flops * 100 + moved
    if any(node.key in gpu and node.op_type != "Look" for node in graph.nodes):
        total += rates.submit_ns
    for name in graph.values:
        on_gpu = name in gpu
        wanted = {node.key in gpu for node in graph.consumers.get(name, ())}
        if on_gpu and False in wanted:
            total += rates.download_latency_ns + nbytes(name)
        elif on_gpu and graph.is_output(name):
            total += rates.readback_ns + nbytes(name)
        if not on_gpu and True in wanted:
            total += rates.upload_latency_ns + nbytes(name)
    for saving in model.savings:
        if {model.nodes[saving.first].key, model.nodes[saving.second].key} <= gpu:
            total -= saving.saved_ns
    return total


@given(drawn=models())
def test_the_cut_is_optimal(drawn: tuple[CostModel, Graph, DeviceProfile]) -> None:
    model, graph, profile = drawn
    keys = [node.key for node in model.nodes]
    movable = [keys[i] for i in model.possible]
    best = min(
        cost_by_hand(model, graph, profile, set(placed))
        for size in range(len(movable) + 1)
        for placed in itertools.combinations(movable, size)
    )
    chosen = minimum_cut(model)
    assert chosen <= model.possible
    assert cost_by_hand(model, graph, profile, {keys[i] for i in chosen}) == best
    assert model.total_ns(chosen) == best


@given(drawn=models(), data=st.data())
def test_totals_agree_for_every_placement(
    drawn: tuple[CostModel, Graph, DeviceProfile], data: st.DataObject
) -> None:
    model, graph, profile = drawn
    free = sorted(model.possible)
    placed = data.draw(st.sets(st.sampled_from(free))) if free else set()
    keys = {model.nodes[i].key for i in placed}
    assert model.total_ns(placed) >= 0
    assert model.total_ns(placed) == cost_by_hand(model, graph, profile, keys)


def test_a_thousand_nodes_are_cut() -> None:
    b = Builder()
    value = b.input("x", (4,))
    for block in range(200):
        a = calc(b, (value,), f"a{block}", 40 + block % 7)
        c = calc(b, (a,), f"c{block}", block % 3)
        d = calc(b, (value, c), f"d{block}", 3, "Host" if block % 20 == 7 else "Calc")
        e = b.node("Look", (d,), f"e{block}", (4,), domain="test")
        value = calc(b, (e, a), f"f{block}", 20)
    graph = b.graph(value)
    found = split(graph, may_fuse=lambda first, second: second.key.startswith(("c", "f")))
    assert len(found.verdicts) == 1000
    counts = [v.device for v in found.verdicts.values()]
    assert counts.count("gpu") > 900 and counts.count("cpu") >= 10
    assert found.predicted_ms <= min(found.all_cpu_ms, found.all_gpu_ms)
