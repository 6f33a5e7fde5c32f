"""The real models are what the table says: they arrive whole, and ONNX Runtime understands them."""

from __future__ import annotations

import hashlib

import numpy as np

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
