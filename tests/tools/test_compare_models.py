"""Compare on trained models, and on operators of the ONNX suite: no false alarms, real finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError
from engine.runtime.session import InferenceSession
from engine.tools.compare import Setup, compare
from engine.tools.compare.groups import GroupCheck
from engine.tools.compare.report import to_text
from tests.backend_suite import load_cases
from tests.real_models import RealModel, real_models
from tests.tools import plants

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SMALL = ("ppocr_cls", "silero_vad_plain", "oww_hey_jarvis")


@real_models(lambda m: m.name in SMALL)
def test_trained_models_agree(model: RealModel, tmp_path: Path) -> None:
    setup = Setup(model.fetch())
    for against in ("cpu", "onnxruntime"):
        found = compare(setup, model.inputs(), against=against, folder=tmp_path)
        assert found.ok and found.checked > 3, to_text(found, model.name, "")
        assert found.worst[0] < 0.5, "tolerances leave room"


@real_models(lambda m: m.name == "ppocr_cls")
def test_faults_in_a_trained_model_are_found(
    model: RealModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(model.fetch())
    feeds = model.inputs()
    with monkeypatch.context() as patch:
        plants.expression(patch, "HardSigmoid", "clamp({0} * {alpha}, {T}(0), {T}(1))")
        found = compare(setup, feeds, folder=tmp_path / "kernel").finding
        assert found is not None and (found.kind, found.alone) == ("kernel", True)
        assert found.node.startswith("HardSigmoid 'HardSigmoid@") and found.model is not None
        with InferenceSession(found.model, device="cpu") as session:
            assert len(session.get_inputs()) == 1
    for _ in plants.clear_rendered():
        plants.in_pass(monkeypatch, "fold_batchnorm", lambda a, b: plants.new_constants(a, b, 1.02))
        found = compare(setup, feeds, folder=tmp_path / "pass").finding
    assert found is not None and (found.kind, found.blame) == ("pass", "fold_batchnorm")
    assert found.alone and "BatchNormalization" in " ".join(found.origin)
    said = [note for note in found.notes if note.startswith("fold_batchnorm says: ")]
    assert len(said) == 1 and f"{found.differences[0].name!r} folded into" in said[0]


def test_the_operators_of_the_onnx_suite_raise_no_alarm() -> None:
    """A sample of the node cases; each GPU kernel against NumPy on the same inputs."""
    cases = list(load_cases(("node",)).values())[::25]
    wrong, checked = [], 0
    for case in cases:
        check = GroupCheck()
        try:
            with InferenceSession(case.model, device="gpu") as session:
                inputs, _ = case.data_sets()[0]
                names = [a.name for a in session.get_inputs()]
                check.run(session, dict(zip(names, inputs, strict=False)))
        except EngineError:
            continue
        checked += check.found.groups
        if check.found.failure is not None or check.found.lost:
            wrong.append((case.name, check.found.failed, check.found.lost))
    assert not wrong
    assert checked > 40


def test_half_precision_is_held_to_its_own_tolerance(tmp_path: Path) -> None:
    import onnx

    from tests.runtime.models import parse

    text = """h (float16[n,32] x, float16[32,16] w) => (float16[n,16] y) {
      a = MatMul(x, w)
      b = Tanh(a)
      y = Softmax <axis = -1> (b)
    }"""
    onnx.save(parse(text), tmp_path / "model.onnx")
    rng = np.random.default_rng(3)
    feeds = {
        n: rng.standard_normal(s).astype(np.float16) for n, s in (("x", (7, 32)), ("w", (32, 16)))
    }
    found = compare(Setup(tmp_path / "model.onnx"), feeds, folder=tmp_path / "wrong")
    assert found.ok and found.checked >= 1, to_text(found, "h", "")
