"""Values on the host: how long they are kept, and when a node may write over one."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_fallback import threads
from engine import InferenceSession
from engine.errors import EngineError
from engine.runtime import executor
from engine.runtime.host import HostNode, is_unshared, last_reads
from tests.runtime.models import parse

BRANCHED = """branched (float[n] x) => (float[n] kept, float[1,m] last) {
  early = Tanh(x)
  kept = Neg(early)
  shape = Constant <value_ints = [1, -1]> ()
  row = Reshape(early, shape)
  late = Exp(row)
  last = Add(late, row)
}"""


def test_only_an_array_that_nobody_else_holds_is_free() -> None:
    assert is_unshared([np.ones(4096)], 0)
    assert is_unshared([np.ones(4096)[::2]], 0), "nor does anybody hold what it is a view of"
    kept = np.ones(4096)
    assert not is_unshared([kept], 0)
    assert not is_unshared([kept[1:]], 0)
    items = [np.ones(4096)]
    view = items[0].reshape(64, 64)
    assert not is_unshared(items, 0), "a view needs its memory"
    assert not is_unshared([view], 0)
    twice = [np.ones(4096)]
    assert not is_unshared(twice + twice, 0)


def test_what_may_not_be_written_is_not_free() -> None:
    fixed = [np.ones(4096)]
    fixed[0].flags.writeable = False
    assert not is_unshared(fixed, 0)
    assert not is_unshared([np.frombuffer(bytearray(8192), np.float32)], 0)
    assert not is_unshared([np.broadcast_to(np.ones(1), 4096)], 0)
    assert not is_unshared([[1, 2]], 0)
    assert not is_unshared([None], 0)


def test_values_are_dropped_with_their_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(parse(BRANCHED).SerializeToString(), device="cpu")
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    kept = executor.HostNode.run
    seen: dict[str, set[str]] = {}

    def watched(node: HostNode, host: dict[str, object], *rest: object) -> None:
        kept(node, host, *rest)  # type: ignore[arg-type]
        seen[node.node.op_type] = set(host)

    monkeypatch.setattr(executor.HostNode, "run", watched)
    first, second = session.run(None, {"x": x})
    np.testing.assert_allclose(first, -np.tanh(x), rtol=1e-6)
    np.testing.assert_allclose(second, [np.exp(np.tanh(x)) + np.tanh(x)], rtol=1e-6)
    assert seen["Tanh"] == {"early"}, "nothing reads x again"
    assert seen["Neg"] - {"kept"} == seen["Exp"] - {"kept", "late"} == {"early"}, (
        "a view of it is still read"
    )
    assert seen["Add"] == {"kept", "last"}


def test_outputs_are_never_dropped() -> None:
    session = InferenceSession(parse(BRANCHED).SerializeToString(), device="cpu")
    plan = session.plan({"x": np.ones(3, np.float32)})
    dropped = [name for names in last_reads(plan).values() for name in names]
    assert sorted(dropped) == sorted(set(dropped)), "each once"
    assert set(dropped) == {"x", "early", "late"}


def test_what_fails_is_told_with_its_operands() -> None:
    text = """bad (float[n] x, int64[1] at) => (float[1] y) { y = Gather(x, at) }"""
    session = InferenceSession(parse(text).SerializeToString(), device="cpu")
    feeds = {"x": np.ones(3, np.float32), "at": np.array([7])}
    with pytest.raises(EngineError, match=r"Gather .* failed on \(float32\[3\], int64\[1\]\)"):
        session.run(None, feeds)


@pytest.mark.parametrize("size", [4, 1024])
def test_nodes_take_the_threads_from_blas(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(f"""product (float[{size},{size}] a, float[{size},{size}] b) => (float[m,n] y) {{
      y = MatMul(a, b)
    }}""")
    session = InferenceSession(model.SerializeToString(), device="cpu")
    seen = [4]
    blas = threads._Blas(lambda: seen[-1], seen.append)
    monkeypatch.setattr(threads, "_blas", lambda: blas)
    a = np.random.default_rng(0).standard_normal((size, size), np.float32)
    (y,) = session.run(None, {"a": a, "b": a.T.copy()})
    assert seen == [4, 1, 4]
    np.testing.assert_allclose(y, a @ a.T, rtol=1e-4, atol=1e-3)
