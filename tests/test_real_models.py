"""The real models are what the table says, and the engine agrees with ONNX Runtime on them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import engine
from tests.real_models import RealModel, real_models


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
