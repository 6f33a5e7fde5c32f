"""Values that stay on the device and grow: a decoding loop with a cache of keys and values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import engine
from engine.ir import Array
from engine.target import Target

pytestmark = pytest.mark.gpu

DECODE = """<ir_version: 10, opset_import: ["" : 21]>
decode (float[1,4,1,16] q, float[1,4,1,16] k, float[1,4,1,16] v,
        float[1,4,past,16] past_k, float[1,4,past,16] past_v)
    => (float[1,4,1,16] out, float[1,4,total,16] all_k, float[1,4,total,16] all_v) {
  all_k = Concat <axis = 2> (past_k, k)
  all_v = Concat <axis = 2> (past_v, v)
  turned = Transpose <perm = [0,1,3,2]> (all_k)
  scores = MatMul(q, turned)
  scale = Constant <value_float = 0.25> ()
  scaled = Mul(scores, scale)
  weights = Softmax <axis = -1> (scaled)
  out = MatMul(weights, all_v)
}"""
CACHE = ("all_k", "all_v")


def attention(q: Array, k: Array, v: Array) -> Array:
    """softmax(q k^T / 4) v in float64."""
    scores = np.float64(q) @ np.float64(k).transpose(0, 1, 3, 2) * 0.25
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def step(rng: np.random.Generator) -> dict[str, Array]:
    return {n: rng.standard_normal((1, 4, 1, 16)).astype(np.float32) for n in ("q", "k", "v")}


def test_decoding_200_steps_appends_in_place() -> None:
    rng = np.random.default_rng(0)
    empty = np.zeros((1, 4, 0, 16), np.float32)
    with engine.InferenceSession(onnx.parser.parse_model(DECODE), device="gpu") as session:
        past_k, past_v = empty, empty
        keys, values, buffers = empty, empty, set()
        for length in range(1, 201):
            feeds = step(rng)
            out, past_k, past_v = session.run(
                None, {**feeds, "past_k": past_k, "past_v": past_v}, outputs_on_device=CACHE
            )
            keys = np.concatenate([keys, feeds["k"]], axis=2)
            values = np.concatenate([values, feeds["v"]], axis=2)
            np.testing.assert_allclose(
                out, attention(feeds["q"], keys, values), rtol=1e-4, atol=1e-5
            )
            assert past_k.shape == (1, 4, length, 16)
            buffers.add(past_k.buffer.uid)
            assert past_k.nbytes <= max(2 * keys.nbytes, 32 * 4 * 16 * 4)
        np.testing.assert_array_equal(past_k.numpy(), keys)
        np.testing.assert_array_equal(past_v.numpy(), values)
        assert session.plans_made <= 4
        assert len(buffers) <= 8, "the buffer must grow by doubling, not with every step"


def test_two_continuations_of_one_cache_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(1)
    with engine.InferenceSession(onnx.parser.parse_model(DECODE), device="gpu") as session:
        past = {n: np.zeros((1, 4, 0, 16), np.float32) for n in ("past_k", "past_v")}
        for _ in range(3):
            feeds = step(rng)
            _, k, v = session.run(None, {**feeds, **past}, outputs_on_device=CACHE)
            past = {"past_k": k, "past_v": v}
        before = past["past_k"].numpy()
        ends = [step(rng), step(rng)]
        runs = [session.run(None, {**e, **past}, outputs_on_device=CACHE) for e in ends]
        for feeds, (_, k, _) in zip(ends, runs, strict=True):
            np.testing.assert_array_equal(k.numpy(), np.concatenate([before, feeds["k"]], axis=2))
        np.testing.assert_array_equal(past["past_k"].numpy(), before)


def test_a_value_with_gaps_serves_as_any_other_input() -> None:
    rng = np.random.default_rng(2)
    double = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "f (float[1,4,n,16] x) => (float[1,4,n,16] y) { y = Add(x, x) }"
    )
    with engine.InferenceSession(onnx.parser.parse_model(DECODE), device="gpu") as session:
        past = {n: np.zeros((1, 4, 0, 16), np.float32) for n in ("past_k", "past_v")}
        for _ in range(5):
            feeds = step(rng)
            _, k, v = session.run(None, {**feeds, **past}, outputs_on_device=CACHE)
            past = {"past_k": k, "past_v": v}
        assert k.storage.growing
        for device in ("gpu", "cpu"):
            with engine.InferenceSession(double, device=device) as other:
                (y,) = other.run(None, {"x": k})
                np.testing.assert_array_equal(y, 2 * k.numpy())
        # and a call that returns the cache to the host
        feeds = step(rng)
        _, all_k, _ = session.run(None, {**feeds, **past})
        np.testing.assert_array_equal(all_k, np.concatenate([k.numpy(), feeds["k"]], axis=2))


def test_a_value_with_gaps_may_be_returned_as_it_came() -> None:
    rng = np.random.default_rng(3)
    passed_on = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "f (float[1,4,n,16] x) => (float[1,4,n,16] same) { same = Identity(x) }"
    )
    with engine.InferenceSession(onnx.parser.parse_model(DECODE), device="gpu") as session:
        past = {n: np.zeros((1, 4, 0, 16), np.float32) for n in ("past_k", "past_v")}
        for _ in range(3):
            _, k, v = session.run(None, {**step(rng), **past}, outputs_on_device=CACHE)
            past = {"past_k": k, "past_v": v}
    with engine.InferenceSession(passed_on, device="gpu") as other:
        (same,) = other.run(None, {"x": k}, outputs_on_device=["same"])
        np.testing.assert_array_equal(same.numpy(), k.numpy())
        np.testing.assert_array_equal(other.run(None, {"x": k})[0], k.numpy())


def test_a_cache_that_outgrows_a_binding_leaves_the_device_and_stays_right() -> None:
    """A binding holds 40 keys: doubling stops there, and what is longer is joined by the CPU."""
    rng = np.random.default_rng(4)
    target = Target(max_storage_buffer_binding_size=40 * 4 * 16 * 4)
    model = onnx.parser.parse_model(DECODE)
    with engine.InferenceSession(model, device="gpu", target=target) as session:
        past = {n: np.zeros((1, 4, 0, 16), np.float32) for n in ("past_k", "past_v")}
        keys = values = past["past_k"]
        joined = []
        for _ in range(44):
            feeds = step(rng)
            keys = np.concatenate([keys, feeds["k"]], axis=2)
            values = np.concatenate([values, feeds["v"]], axis=2)
            out, k, v = session.run(None, {**feeds, **past}, outputs_on_device=CACHE)
            np.testing.assert_allclose(
                out, attention(feeds["q"], keys, values), rtol=1e-4, atol=1e-5
            )
            joined.append({n.op_type: d for n, d in session.executed()}["Concat"])
            past = {"past_k": k, "past_v": v}
        np.testing.assert_array_equal(k.numpy(), keys)
        assert joined == ["gpu"] * 40 + ["cpu"] * 4


@pytest.mark.parametrize(
    "others",
    {
        "views of what grows": "z = Identity(y) w = Reshape(y, rows)",
        "views of the past": "z = Identity(p) w = Reshape(p, rows)",
        "two that append": "e = Exp(x) z = Concat <axis = 1> (p, e) w = Concat <axis = 1> (p, x)",
        "the past behind itself": "z = Concat <axis = 1> (p, p) w = Concat <axis = 0> (p, p)",
        "a view of the past behind it": """flat = Reshape(p, rows) back = Unsqueeze(flat, zero)
            z = Concat <axis = 1> (p, back) w = Neg(z)""",
        "nodes on the CPU": "z = Unique(y) u = Unique(p) w = Exp(u)",
    }.items(),
    ids=lambda others: others[0],
)
@pytest.mark.parametrize("kept", [["y"], ["y", "z", "w"]], ids=["alone", "all"])
def test_a_value_that_grows_beside_other_uses(others: tuple[str, str], kept: list[str]) -> None:
    rng = np.random.default_rng(5)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> f (float[1,n,3] p, float[1,k,3] x) '
        "=> (float[1,m,3] y, float z, float w) <int64[2] rows = {-1, 3}, int64[1] zero = {0}> "
        f"{{ y = Concat <axis = 1> (p, x) {others[1]} }}"
    )
    for output in model.graph.output[1:]:
        output.type.tensor_type.ClearField("shape")
    p = rng.standard_normal((1, 2, 3)).astype(np.float32)
    with (
        engine.InferenceSession(model, device="gpu") as session,
        engine.InferenceSession(model, device="cpu") as numpy,
    ):
        past, earlier = p, []
        for step in range(4):
            x = rng.standard_normal((1, step % 3, 3)).astype(np.float32)
            found = session.run(None, {"p": past, "x": x}, outputs_on_device=kept)
            wanted = numpy.run(None, {"p": p, "x": x})
            earlier += zip(found, wanted, strict=True)
            for value, expected in earlier:
                np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-5, atol=1e-6)
            past, p = found[0], wanted[0]


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ("g = Concat <axis = 1> (past, new) d = Cast <to = 11> (g) y = Cast <to = 1> (d)", "g"),
        (
            """g = Concat <axis = 1> (past, new)
            y = If (p) <then_branch = a () => (float[] r) { r = Concat <axis = 1> (past, g) },
                        else_branch = b () => (float[] s) { s = Exp(g) }>""",
            "g",
        ),
        ("g = Concat <axis = 1> (past, new) y = Reshape(g, flat)", "gy"),
        ("g = Concat <axis = 1> (past, new) y = Identity(past)", "gy"),
        ("g = Concat <axis = 1> (past, new) y = Reshape(past, flat)", "gy"),
        ("g = Concat <axis = 1> (past, new) t = Neg(past) y = Concat <axis = 0> (past, t)", "gy"),
        ("g = Concat <axis = 1> (past, past) y = Neg(g)", "g"),
        (
            """more = If (p) <then_branch = a () => (float[] r) { r = Exp(new) },
                           else_branch = b () => (float[] s) { s = Concat <axis = 1> (new, new) }>
            g = Concat <axis = 1> (past, more) y = Neg(g)""",
            "g",
        ),
    ],
    ids=["host", "body", "view", "past", "view of past", "two axes", "itself", "open length"],
)
def test_what_else_is_done_with_values_that_grow(nodes: str, kept: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        f (float[2, n] past, float[2, k] new, bool p) => (float[] g, float[] y)
        <int64[1] flat = {{-1}}> {{ {nodes} }}"""
    )
    past = keys = np.arange(2, dtype=np.float32).reshape(2, 1)
    with (
        engine.InferenceSession(model, device="cpu") as cpu,
        engine.InferenceSession(model, device="gpu") as gpu,
    ):
        for step in range(6):
            given = {"new": np.full((2, 5), step, np.float32), "p": np.array(step % 2 == 0)}
            want = cpu.run(None, {**given, "past": keys})
            got = gpu.run(None, {**given, "past": past}, outputs_on_device=[*kept])
            for mine, right in zip(got, want, strict=True):
                np.testing.assert_allclose(np.asarray(mine), right, rtol=1e-5)
            past, keys = got[0], want[0]
