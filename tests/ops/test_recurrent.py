"""LSTM, GRU and RNN: directions, layouts, lengths, states, activations, both ways to run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engine
from cpu_fallback import registry
from engine import dims
from engine.ops import KernelCall, Lowering, definition
from engine.target import Target
from tests.ops.harness import (
    OpCase,
    arrays,
    build_model,
    check_cpu,
    check_engine_cpu,
    check_infer,
    feeds,
    inferred,
    supported,
)
from tests.ops.standard import for_each, gpu_node_suite, on_gpu

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op: str,
    steps: int,
    sequences: int,
    inputs: int,
    hidden: int,
    given: str = "",
    *,
    name: str = "",
    constants: tuple[int, ...] = (1, 2, 3),
    lengths: tuple[int, ...] | None = None,
    **attrs: Any,
) -> OpCase:
    """A case with the inputs that letters name: b (biases), h, c (states), p (peepholes)."""
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(steps * 31 + sequences * 7 + hidden)

    def noise(*shape: int, scale: float = 1.0) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    first = (sequences, steps) if attrs.get("layout") else (steps, sequences)
    state = (sequences, directions) if attrs.get("layout") else (directions, sequences)
    width, scale = GATES[op] * hidden, hidden**-0.5
    values: list[Any] = [
        noise(*first, inputs),
        noise(directions, width, inputs, scale=inputs**-0.5),
        noise(directions, width, hidden, scale=scale),
        noise(directions, 2 * width, scale=0.3) if "b" in given else None,
        None if lengths is None else np.array(lengths, np.int32),
        noise(*state, hidden) if "h" in given else None,
    ]
    if op == "LSTM":
        values.append(noise(*state, hidden) if "c" in given else None)
        values.append(noise(directions, 3 * hidden, scale=0.5) if "p" in given else None)
    while values[-1] is None:
        values.pop()
    attrs = {"hidden_size": hidden, **attrs}

    def exact(*operands: Any) -> Any:
        wide = [v if v is None or v.dtype.kind == "i" else v.astype(np.float64) for v in operands]
        return tuple(registry.run(op, "", 22, attrs, wide, 3 if op == "LSTM" else 2))

    title = name or "-".join(f"{k}={v}" for k, v in attrs.items() if k != "hidden_size")
    sizes = f"{steps}x{sequences}x{inputs}x{hidden}"
    fixed = tuple(i for i in constants if i < len(values) and values[i] is not None)
    return OpCase(
        op,
        tuple(values),
        attrs,
        3 if op == "LSTM" else 2,
        opset=22,
        constants=fixed,
        oracle=exact,
        name=f"{sizes}-{given}{'-lengths' if lengths else ''}-{title}",
    )


def _cases(op: str) -> list[OpCase]:
    everything = "bhcp" if op == "LSTM" else "bh"
    both = {"direction": "bidirectional"}
    cases = [
        recurrent(op, 7, 3, 5, 5),
        recurrent(op, 7, 3, 5, 5, everything, name="all"),
        recurrent(op, 7, 3, 5, 5, "b", constants=()),
        recurrent(op, 3, 2, 3, 129, "b", constants=()),
        recurrent(op, 7, 3, 5, 5, "bh", direction="reverse"),
        recurrent(op, 7, 3, 5, 5, "bh", **both),
        recurrent(op, 7, 3, 5, 5, "bhc", layout=1, **both),
        recurrent(op, 6, 3, 5, 4, "bhc", lengths=(6, 2, 0), **both),
        recurrent(op, 6, 3, 5, 4, everything, lengths=(3, 6, 1), layout=1, direction="reverse"),
        recurrent(op, 6, 3, 5, 4, "b", clip=0.3),
        recurrent(op, 1, 1, 3, 1, "b"),
        recurrent(op, 5, 1, 7, 128, "bhc"),
        recurrent(op, 4, 2, 3, 300, "bhc", **both),
        recurrent(op, 5, 2, 3, 301, "b", lengths=(2, 5)),
        recurrent(op, 100, 1, 2, 3, "b"),
        recurrent(op, 3, 0, 2, 3, "b"),
        recurrent(op, 0, 2, 2, 3, "bhc"),
        recurrent(op, 0, 2, 2, 300, "bh"),
    ]
    if op == "LSTM":
        cases += [
            recurrent(op, 6, 3, 5, 4, "bhcp", input_forget=1),
            recurrent(op, 4, 2, 3, 300, "bhcp", lengths=(4, 2), input_forget=1, **both),
        ]
    if op == "GRU":
        cases += [
            recurrent(op, 6, 3, 5, 4, "bh", linear_before_reset=1),
            recurrent(op, 6, 3, 5, 4, "h", linear_before_reset=1, **both),
            recurrent(op, 4, 2, 3, 300, "bh", linear_before_reset=1),
        ]
    return cases


def _activations() -> list[OpCase]:
    cases = [
        recurrent(
            "RNN",
            5,
            2,
            3,
            4,
            "b",
            activations=[name],
            **({"activation_alpha": [0.3]} if scaled else {}),
            **({"activation_beta": [0.4]} if scaled == 2 else {}),
        )
        for name, scaled in (
            ("Relu", 0),
            ("Sigmoid", 0),
            ("Softsign", 0),
            ("Softplus", 0),
            ("Affine", 2),
            ("ScaledTanh", 2),
            ("HardSigmoid", 2),
            ("LeakyRelu", 1),
            ("ThresholdedRelu", 1),
            ("Elu", 1),
        )
    ]
    mixed = ["HardSigmoid", "Affine", "ScaledTanh", "Sigmoid", "Elu", "Tanh"]
    numbers = {"activation_alpha": [0.3, 0.7, 1.2, 0.5], "activation_beta": [0.4, 0.1, 0.8]}
    both = {"direction": "bidirectional", "activations": mixed, **numbers}
    cases.append(recurrent("LSTM", 5, 2, 3, 4, "bp", name="mixed", **both))
    cases.append(recurrent("LSTM", 3, 2, 3, 270, "bp", name="mixed", **both))
    return cases


CASES = [*(case for op in GATES for case in _cases(op)), *_activations()]
DYNAMIC = [
    recurrent(op, 6, 3, 5, hidden, "bh", direction="bidirectional")
    for op in GATES
    for hidden in (4, 270)
]
HALF = recurrent("LSTM", 3, 2, 3, 4, "bh")
HALF = HALF.replace(
    inputs=tuple(v if v is None else v.astype(np.float16) for v in HALF.inputs),  # type: ignore[union-attr]
    tol=3e-3,
    name="float16",
)


test_cpu = for_each([*CASES, HALF], check_cpu)
test_infer = for_each([*CASES, HALF], check_infer)
test_gpu = on_gpu([*CASES, HALF])
test_gpu_with_symbolic_sizes = on_gpu(DYNAMIC, dynamic=True)


def test_engine_on_the_cpu() -> None:
    check_engine_cpu(CASES[1])


@pytest.mark.gpu
def test_runs_repeat_bit_by_bit_and_steps_may_change() -> None:
    case = recurrent("GRU", 6, 2, 3, 270, "bh")
    values = arrays(case)
    model = build_model(case, values, dynamic=True)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        first = session.run(None, feeds(case, values))
        longer = recurrent("GRU", 40, 2, 3, 270, "bh").inputs[0]
        changed = [longer, *values[1:]]
        got = session.run(None, feeds(case, changed))
        again = session.run(None, feeds(case, values))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    want = registry.run("GRU", "", 22, dict(case.attrs), changed, 2)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def lowered(case: OpCase, *, dynamic: bool = False) -> list[tuple[KernelCall, ...]]:
    graph, node, _ = inferred(case, dynamic=dynamic)
    graph = graph.replace(outputs=node.outputs)
    op = definition(node)
    assert op is not None and op.lower is not None
    names = iter(f"scratch{i}" for i in range(9))
    view = Lowering(
        graph, node, Target.baseline(), lambda kind: next(names), lambda source, *_: f"{source}'"
    )
    return list(op.lower(view))


def test_few_hidden_units_run_in_one_dispatch() -> None:
    stages = lowered(recurrent("LSTM", 50, 2, 3, 128, "bhc"))
    assert [stage[0].shader for stage in stages][1:] == ["recurrent"]
    assert stages[1][0].overrides["WORKGROUP_SIZE"] == 128


def test_many_hidden_units_take_a_dispatch_a_step() -> None:
    stages = lowered(recurrent("GRU", 50, 2, 3, 300, "bh"))
    calls = [stage[0] for stage in stages][1:]
    assert [c.shader for c in calls] == [
        "recurrent_start",
        "recurrent_step",
        "recurrent_step",
        "recurrent_finish",
    ]
    assert [c.repeat for c in calls] == [1, 50, 50, 1]
    assert "RESET" in calls[1].flags and "RESET" not in calls[2].flags


def test_long_sequences_take_a_dispatch_a_step() -> None:
    stages = lowered(recurrent("RNN", 6, 1, 1, 64), dynamic=True)
    (loop, step) = next(s for s in stages if s[-1].shader == "recurrent_step")
    assert loop.shader == "recurrent"
    for steps, fits in ((100, True), (4000, False)):
        binding = {"d0_0": steps, "d0_1": 1, "d0_2": 1}
        assert all(g.holds(binding) for g in loop.when) == fits
        assert dims.evaluate(step.repeat, binding) == steps
        assert dims.evaluate(step.trips, binding) == 16


def test_what_the_gpu_refuses() -> None:
    strange = recurrent("RNN", 2, 1, 1, 2, activations=["Cosine"])
    assert "cosine" in supported(strange).reason
    few = recurrent("LSTM", 2, 1, 1, 2, activations=["Tanh"])
    assert "3 are needed" in supported(few).reason


@pytest.mark.gpu
def test_more_steps_than_a_dispatch_may_repeat_run_on_the_cpu() -> None:
    case = recurrent("RNN", 4097, 1, 1, 257)
    values = arrays(case)
    with engine.InferenceSession(build_model(case, values), device="gpu") as session:
        got = session.run(None, feeds(case, values))
        assert "4097 steps" in str(session.explain())
    want = registry.run("RNN", "", 22, dict(case.attrs), values, 2)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)


def test_a_cell_that_a_small_device_cannot_hold_takes_steps() -> None:
    graph, node, _ = inferred(recurrent("RNN", 5, 2, 3, 100))
    op = definition(node)
    assert op is not None and op.lower is not None
    small = Target(max_compute_invocations_per_workgroup=64)
    view = Lowering(graph, node, small, lambda kind: "s", lambda source, *_: source)
    assert "recurrent_step" in [stage[0].shader for stage in op.lower(view)]


test_node_suite = gpu_node_suite(*GATES, require_gpu=True)
