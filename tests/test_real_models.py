"""The real models are what the table says, and the engine agrees with ONNX Runtime on them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import engine
from engine import ops
from engine.ir import is_control_flow
from tests.real_models import RealModel, real_models

LEAST_SHARE = 0.95
"""Of the nodes of each model that the GPU has to take where it is asked to."""


def gpu_share(session: engine.InferenceSession) -> float:
    """The share of nodes on the GPU, after passes and before fusion, bodies that ran included.

    Views, which move nothing, do not count, nor does what only works out sizes, nor control flow,
    which is what its bodies are.
    """
    bodies = [runner for _, runner in session._runner._bodies.values()]
    plans = [made.plan for runner in (session._runner, *bodies) for made in runner.prepared]
    where = []
    for plan in plans:
        for node in plan.graph.nodes:
            verdict, op = plan.partition.verdicts[node.key], ops.definition(node)
            is_view = op is not None and op.view
            if not (is_view or verdict.device in ("folded", "host-shape") or is_control_flow(node)):
                where.append(verdict.device)
    return where.count("gpu") / len(where)


@real_models()
def test_reference_run(model: RealModel) -> None:
    path = model.fetch()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == model.file.sha256
    outputs = model.reference(model.inputs())
    for output in outputs:
        assert np.isfinite(output).all()
    assert any(output.size == 1 or np.ptp(output) > 0 for output in outputs)
    if model.meaning is not None:
        read, right = model.meaning
        assert read(outputs) == right


@real_models(lambda model: model.alt_inputs is not None)
def test_other_shape_differs(model: RealModel) -> None:
    assert model.alt_inputs is not None
    feed, other = model.inputs(), model.alt_inputs()
    assert {k: v.dtype for k, v in feed.items()} == {k: v.dtype for k, v in other.items()}
    assert any(feed[name].shape != other[name].shape for name in feed)
    assert all(np.isfinite(output).all() for output in model.reference(other))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@real_models()
def test_engine_agrees_with_onnxruntime(model: RealModel, device: str) -> None:
    with engine.InferenceSession(model.fetch(), device=device) as session:
        for make in filter(None, (model.inputs, model.alt_inputs)):
            feed = make()
            got, want = session.run(None, feed), model.reference(feed)
            for mine, reference in zip(got, want, strict=True):
                assert (mine.shape, mine.dtype) == (reference.shape, reference.dtype)
                scale = float(np.abs(reference).max())
                np.testing.assert_allclose(mine, reference, rtol=0, atol=model.tolerance * scale)
            if model.meaning is not None and make is model.inputs:
                read, right = model.meaning
                assert read(got) == right
        if device == "gpu":
            assert gpu_share(session) >= LEAST_SHARE
