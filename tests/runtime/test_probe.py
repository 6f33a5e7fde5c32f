"""What a probe is shown: every group once, with its values as they lay, and nothing changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.ir import Array
from engine.runtime.probe import Observed, Probe
from engine.runtime.session import InferenceSession
from tests.runtime.models import AFFINE, parse
from tests.runtime.test_control_flow import NON_ZERO
from tests.runtime.test_recording import LOOP, PRODUCTS

RNG = np.random.default_rng(4)


def noise(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def watch(session: InferenceSession, feeds: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What was seen (with all values written), and the results."""
    seen = []

    def visit(group: Observed) -> None:
        seen.append((group, {n: group.read(n) for n in group.writes}))

    with session.probed(Probe(visit)):
        results = session.run(None, feeds)
    return seen, results


@pytest.mark.gpu
def test_values_are_shown_as_the_device_has_them() -> None:
    session = InferenceSession(parse(PRODUCTS), device="gpu")
    feeds = {"x": noise(20, 256), "w": noise(256, 256)}
    plain = session.run(None, feeds)
    seen, results = watch(session, feeds)
    np.testing.assert_array_equal(plain[0], results[0])
    assert [n.op_type for group, _ in seen for n in group.nodes] == ["MatMul", "Softmax", "MatMul"]
    first, second, third = seen
    np.testing.assert_array_equal(first[0].inputs["x"], feeds["x"])
    np.testing.assert_allclose(first[1]["y"], feeds["x"] @ feeds["w"], rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(second[0].inputs["y"], first[1]["y"])
    np.testing.assert_array_equal(third[1]["z"], results[0])
    assert all(group.on_gpu and group.path == () for group, _ in seen)


@pytest.mark.gpu
def test_a_fused_group_is_one_and_shows_what_it_stores() -> None:
    session = InferenceSession(parse(AFFINE), device="gpu")
    seen, results = watch(session, {"x": noise(5, 3), "b": noise(3)})
    ((group, written),) = seen
    assert [n.op_type for n in group.nodes] == ["Add", "Tanh", "Neg"]
    assert written.keys() == {"y", "z"} and group.inputs.keys() == {"x", "b"}
    np.testing.assert_array_equal(written["y"], results[0])


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_bodies_are_shown_with_their_path(device: str) -> None:
    session = InferenceSession(parse(LOOP), device=device)
    feeds = {"x": noise(3), "trips": np.array(3, np.int64)}
    seen, results = watch(session, feeds)
    inner = [(group, written) for group, written in seen if group.path]
    assert {group.path for group, _ in inner} == {("y",)}
    last = [written["b"] for _, written in inner if "b" in written]
    assert len(last) == 3 and all(group.on_gpu == (device == "gpu") for group, _ in inner)
    np.testing.assert_array_equal(last[-1], results[0])
    outer, _ = seen[-1]
    assert outer.nodes[0].op_type == "Loop" and not outer.on_gpu


@pytest.mark.gpu
def test_sizes_that_data_decide_are_bound_when_values_are_shown() -> None:
    zero = "zero = Constant <value_int = 0> ()\n"
    model = parse(NON_ZERO.replace("{\n", "{\n" + zero, 1))
    session = InferenceSession(model, device="gpu")
    x = noise(9, 4)
    seen, _ = watch(session, {"x": x})
    places = [written for group, written in seen if group.nodes[0].op_type == "NonZero"]
    assert places[0]["places"].shape[1] == int((np.exp(x) > 1).sum())
    assert sum(group.on_gpu for group, _ in seen) >= 2


def test_inputs_are_copied_before_an_operator_reuses_their_memory() -> None:
    text = """g (float[5000] x) => (float[5000] y) {
      a = Neg(x)
      b = Neg(a)
      y = Neg(b)
    }"""
    x = noise(5000)
    with InferenceSession(parse(text), device="cpu", disable=["eliminate"]) as session:
        seen, _ = watch(session, {"x": x})
    for group, written in seen:
        (given,) = group.inputs.values()
        (made,) = written.values()
        np.testing.assert_array_equal(given, -made)


def test_what_a_probe_raises_ends_the_call() -> None:
    class EnoughError(Exception):
        pass

    def visit(group: Observed) -> None:
        raise EnoughError

    with InferenceSession(parse(AFFINE), device="cpu") as session:
        with session.probed(Probe(visit)), pytest.raises(EnoughError):
            session.run(None, {"x": noise(2, 3), "b": noise(3)})
        session.run(None, {"x": noise(2, 3), "b": noise(3)})
