"""A text recogniser on lines of many widths: one plan, and nothing compiled after the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engine
from engine.lowering import Lowerer
from engine.runtime.device import Device
from tests.real_models import RealModel, real_models

WIDTHS = (320, 100, 480, 333, 321, 322, 323, 324, 64, 48, 800, 1001, 77, 89, 123, 256, 512, 640)


@pytest.mark.gpu
@pytest.mark.slow
@real_models(lambda model: model.name == "ppocrv4_rec")
def test_lines_of_many_widths_share_a_plan(
    model: RealModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[str] = []

    def counted(cls: type, name: str) -> None:
        real = getattr(cls, name)

        def call(self: Any, *args: Any) -> Any:
            work.append(name)
            return real(self, *args)

        monkeypatch.setattr(cls, name, call)

    counted(Device, "compile")
    counted(Lowerer, "lower")
    rng = np.random.default_rng(0)
    with engine.InferenceSession(model.fetch(), device="gpu") as session:
        for index, width in enumerate(WIDTHS):
            x = rng.standard_normal((1, 3, 48, width)).astype(np.float32)
            (y,) = session.run(None, {"x": x})
            (want,) = model.reference({"x": x})
            assert y.shape == want.shape
            np.testing.assert_allclose(y, want, rtol=0, atol=1e-3 * want.max())
            if index == 1:
                work.clear()
        assert session.plans_made <= 2
    assert not work, "nothing is lowered or compiled once sizes have been seen to vary"
