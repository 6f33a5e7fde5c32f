"""Plans of trained models and of random graphs: transfers, lifetimes and memory, checked step by
step by code that shares nothing with the scheduler."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from engine import schedule as tasks
from engine.compiler import compile_graph, optimise
from engine.costs import DeviceProfile
from engine.dims import evaluate, symbols_of
from engine.importer import load_model
from engine.ops import kernel_inputs
from engine.options import Options
from engine.plan import Dispatch, Plan
from engine.runtime.feeds import bind_inputs
from engine.runtime.session import InferenceSession
from engine.target import Target
from tests.real_models import RealModel, real_models
from tests.runtime.models import parse


def plan_of(model: RealModel) -> tuple[Plan, dict[str, int]]:
    graph = load_model(model.fetch()).graph
    feeds = {n: np.asarray(v) for n, v in model.inputs().items()}
    binding = bind_inputs(graph, feeds, {})
    options = Options("gpu")
    passed = optimise(graph, options, binding)
    plan = compile_graph(passed, options, Target.baseline(), DeviceProfile.builtin(), binding)
    return plan, bind_inputs(plan.graph, feeds, {})


def constants_of(plan: Plan) -> set[str]:
    fixed = {n for n, v in plan.graph.values.items() if v.constant is not None}
    return fixed | set(plan.derived)


def touched(step: object) -> tuple[set[str], set[str]]:
    """Values, wholes or parts, that a step (reads, writes)."""
    if isinstance(step, Dispatch):
        return {n for v in step.variants for n in v.touches} - set(step.outputs), set(step.outputs)
    if isinstance(step, tasks.Upload):
        return set(), {step.value}
    if isinstance(step, tasks.Download):
        return {step.value}, set()
    return set(), set()


def is_there(plan: Plan, written: set[str], name: str) -> bool:
    """Whether a value was written, or lies in place and all that it is made of was."""
    if plan.root(name) in written:
        return True
    maker = plan.graph.producer.get(plan.root(name))
    if maker is None or not any(maker.key in part.by for part in plan.parts.of.values()):
        return False
    return all(is_there(plan, written, n) for n in kernel_inputs(maker))


def check_order(plan: Plan) -> None:
    """Everything is where it is needed when it is needed."""
    fixed = constants_of(plan)
    host = set(plan.graph.inputs) | fixed | set(plan.sizes)
    device, pending, recorded = set(fixed), set(), 0
    for step in plan.steps:
        reads, writes = touched(step)
        match step:
            case tasks.Upload(value):
                assert value in host, f"{value} is uploaded before it exists"
                device.add(value)
            case Dispatch():
                absent = sorted(n for n in reads if not is_there(plan, device, n))
                assert not absent, f"{step.label} reads {absent}"
                device |= writes
                recorded += 1
            case tasks.Download(value):
                assert is_there(plan, device, value)
                pending.add(value)
                recorded += 1
            case tasks.Submit():
                assert recorded, "an empty batch is submitted"
                recorded = 0
            case tasks.Wait(values):
                assert not recorded, "a wait for what was not submitted"
                assert set(values) <= pending
                host |= set(values)
            case tasks.RunCpu(node):
                assert {plan.root(n) for n in node.reads} <= host, node.key
                host |= set(node.writes)
            case tasks.Bind(symbols):
                assert {plan.root(value) for _, value, _ in symbols} <= host
    assert not recorded
    assert {plan.root(n) for n in plan.graph.outputs} <= host


def check_transfers(plan: Plan) -> None:
    moves = Counter(
        (type(s).__name__, s.value)
        for s in plan.steps
        if isinstance(s, (tasks.Upload, tasks.Download))
    )
    assert all(count == 1 for count in moves.values()), moves.most_common(3)
    made = {n for s in plan.steps if isinstance(s, Dispatch) for n in s.outputs}
    for kind, value in moves:
        assert is_there(plan, made, value) == (kind == "Download"), f"{kind} of {value}"


def check_memory(plan: Plan, binding: dict[str, int]) -> None:
    """No slot holds two values that are alive at once; the figures are what the steps say."""
    fixed = constants_of(plan)
    life: dict[str, list[int]] = {}
    for index, step in enumerate(plan.steps):
        for name in {plan.parts.whole(n) for n in set.union(*touched(step))} - fixed:
            life.setdefault(name, [index, index])[1] = index
    assert life.keys() == plan.memory.slot_of.keys()
    holder: dict[int, tuple[str, int]] = {}
    for name, (first, last) in sorted(life.items(), key=lambda item: item[1]):
        slot = plan.memory.slot_of[name]
        if slot in holder:
            assert holder[slot][1] < first, f"{name} and {holder[slot][0]} share slot {slot}"
        holder[slot] = (name, last)
    symbols = {s for n in life for d in plan.shape(n) for s in symbols_of(d)}
    if not symbols <= binding.keys():
        return
    nbytes = {n: evaluate(plan.storages[n].nbytes(plan.shape(n)), binding) for n in life}
    slots: dict[int, int] = {}
    for name, slot in plan.memory.slot_of.items():
        slots[slot] = max(slots.get(slot, 0), nbytes[name])
    alive = [
        sum(nbytes[n] for n, (first, last) in life.items() if first <= i <= last)
        for i in range(len(plan.steps))
    ]
    memory = plan.memory
    assert memory.peak_nbytes == sum(slots.values())
    assert memory.no_reuse_nbytes == sum(nbytes.values())
    assert memory.lower_bound_nbytes == max(alive, default=0)
    assert memory.lower_bound_nbytes <= memory.peak_nbytes <= memory.no_reuse_nbytes


def check_buffers(plan: Plan) -> None:
    """A dispatch binds no slot twice, and writes none that it reads."""
    for step in plan.dispatches:
        for variant in step.variants:
            places = [plan.memory.slot_of.get(n, n) for n in dict.fromkeys(variant.values)]
            assert len(set(places)) == len(places), step.label
            tensors = plan.kernels[variant.kernel].tensors
            reads = {v for t, v in zip(tensors, variant.values, strict=True) if not t.writable}
            writes = [v for t, v in zip(tensors, variant.values, strict=True) if t.writable]
            assert not reads & set(writes), step.label
            assert len(set(writes)) == len(writes), step.label


@pytest.mark.slow
@real_models()
def test_trained_models(model: RealModel) -> None:
    plan, binding = plan_of(model)
    check_order(plan)
    check_transfers(plan)
    check_memory(plan, binding)
    check_buffers(plan)
    if len(plan.dispatches) > 8:
        assert plan.memory.peak_nbytes < plan.memory.no_reuse_nbytes


def mixture(seed: int) -> str:
    """A random graph of elementwise nodes, normalisations and copies."""
    rng = np.random.default_rng(seed)
    names, lines = ["x", "w"], []
    for i in range(40):
        a, b = (names[int(k)] for k in rng.integers(max(0, len(names) - 7), len(names), 2))
        kind = rng.random()
        if kind < 0.2:
            lines.append(f"v{i} = Tanh({a})")
        elif kind < 0.35:
            lines.append(f"v{i} = Transpose <perm = [0, 1]> ({a})")
        elif kind < 0.5:
            lines.append(f"v{i} = Softmax({a})")
        else:
            lines.append(f"v{i} = Sub({a}, {b})")
        names.append(f"v{i}")
    outputs = ", ".join(f"float[n,6] {n}" for n in names[-4:])
    return f"g (float[n,6] x, float[n,6] w) => ({outputs}) {{ {' '.join(lines)} }}"


REFUSED = {f"v{i}": "for this test" for i in (5, 11, 12, 30)}


@pytest.mark.parametrize("seed", range(8))
def test_random_mixtures(seed: int) -> None:
    binding = {"n": 5}
    disable = frozenset({"elementwise-chain"}) if seed % 2 else frozenset[str]()
    options = Options("gpu", disable, refused=REFUSED)
    passed = optimise(load_model(parse(mixture(seed))).graph, options, binding)
    plan = compile_graph(passed, options, Target.baseline(), DeviceProfile.builtin(), binding)
    check_order(plan)
    check_transfers(plan)
    check_memory(plan, binding)
    check_buffers(plan)
    assert any(isinstance(s, tasks.RunCpu) for s in plan.steps)
    assert len(plan.dispatches) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(8))
def test_random_mixtures_give_the_numbers_of_the_cpu(seed: int) -> None:
    model = parse(mixture(seed))
    rng = np.random.default_rng(seed)
    with (
        InferenceSession(model, device="cpu") as cpu,
        InferenceSession(model, device="gpu", require_gpu=True) as gpu,
        InferenceSession(model, device="gpu") as mixed,
    ):
        mixed._runner.options = dataclasses.replace(mixed._runner.options, refused=REFUSED)
        for n in (5, 1, 64):
            feed = {k: rng.standard_normal((n, 6)).astype(np.float32) for k in ("x", "w")}
            want = cpu.run(None, feed)
            for session in (gpu, mixed):
                for got, right in zip(session.run(None, feed), want, strict=True):
                    scale = max(1.0, float(np.abs(right).max()))
                    np.testing.assert_allclose(got, right, rtol=0, atol=2e-5 * scale)
        assert {place for _, place in mixed.executed()} == {"gpu", "cpu"}
