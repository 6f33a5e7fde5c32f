"""Tuning a model: what is measured, what is kept, and that results stay right."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

from engine.cli import main
from engine.errors import DeviceError
from engine.plan import Plan
from engine.runtime import cache as plans
from engine.runtime import tunings
from engine.runtime.device import open_device
from engine.runtime.session import InferenceSession
from engine.tools import tune as tune_module
from engine.tools.tune import tune
from engine.tools.tune_text import summary, table
from engine.tuning import Tuning, load
from tests.runtime.models import AFFINE, parse

pytestmark = pytest.mark.gpu

PRODUCTS = """
agraph (float[n, 64] x, float[64, 32] v, float[32, 32] w) => (float[n, 32] y) {
    a = MatMul(x, v)
    b = MatMul(a, w)
    y = MatMul(b, w)
}"""
LARGE, SMALL = "MatMul(float32[40x64], float32[64x32])", "MatMul(float32[40x32], float32[32x32])"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "products.onnx"
    onnx.save(parse(PRODUCTS), path)
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tuned kernels are looked for, and kept in a folder of the test's own."""
    monkeypatch.delenv(tunings.VARIABLE)
    monkeypatch.setattr(tunings, "user_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "cache"


def feeds_of(session: InferenceSession) -> Mapping[str, Any]:
    rng = np.random.default_rng(0)
    sizes = {"x": (40, 64), "v": (64, 32), "w": (32, 32)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dispatch takes 8 ms; in style "square-4x4" the large product takes 2 ms."""

    def times(session: InferenceSession, feeds: Any) -> tuple[dict[str, float], Plan]:
        session.run(None, feeds)
        plan = session.plan(feeds)
        found: dict[str, float] = {}
        for d in plan.dispatches:
            fast = d.style == "square-4x4" and d.tuned_as == LARGE
            found[d.tuned_as] = found.get(d.tuned_as, 0.0) + (2.0 if fast else 8.0)
        return found, plan

    monkeypatch.setattr(tune_module, "_call_times", times)


def test_the_fastest_style_of_each_is_found(model: Path, clock: None) -> None:
    found = tune(model, feeds_of, repeats=1)
    assert found.tuning.styles == {LARGE: "square-4x4", SMALL: ""}
    assert [(c.tuned_as, c.count, c.style) for c in found.choices] == [
        (SMALL, 2, ""),
        (LARGE, 1, "square-4x4"),
    ]
    assert (found.default_ms, found.tuned_ms) == (24.0, 18.0)
    assert found.choices[1].measured["square-4x4"] == 2.0
    assert found.rounds == found.all_rounds
    assert "24.00 ms a call in the default style, 18.00 ms tuned" in summary(found, 60)[0]


def test_a_style_that_was_faster_only_once_is_told(model: Path, clock: None) -> None:
    found = tune(model, feeds_of, repeats=1)
    assert not any("again" in line for line in summary(found, 60))
    small, large = found.choices
    found = replace(found, choices=(replace(small, measured={"square-4x4": 7.0}), large))
    assert summary(found, 60)[1] == (
        "for 1 more one was faster at first, but not when measured again: the default stays"
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_a_terminal(model: Path, clock: None, width: int) -> None:
    found = tune(model, feeds_of, repeats=1)
    conv = "Conv(float32[1x3x9x9], float32[8x3x3x3]) dilations=[1, 1] group=1 pads=[0, 0, 0, 0]"
    conv += " group=16 strides=[1, 2]"
    found = replace(found, choices=(replace(found.choices[0], tuned_as=conv),))
    out = Console(width=width, file=io.StringIO())
    out.print(table(found, 10, width))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width and len(lines) < 12
    assert any("next" in line for line in lines) == (width == 120)
    text = " ".join("".join(lines).split())
    assert "group=16" in text and "strides=[1, 2]" in text
    assert "dilations" not in text and "pads" not in text and "group=1 " not in text


def test_sizes_are_those_of_the_inputs_whatever_was_planned_before(
    model: Path, clock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plans.VARIABLE, str(tmp_path / "plans"))

    def kept() -> list[Path]:
        plans.flush(wait=True)
        plans.finish()
        return sorted((tmp_path / "plans").rglob("start-*"))

    with InferenceSession(model, device="gpu", tuning="off") as session:
        feeds = feeds_of(session)
        session.run(None, {**feeds, "x": feeds["x"][:7]})
    before = kept()
    assert len(before) == 1
    assert tune(model, feeds_of, repeats=1).tuning.styles == {LARGE: "square-4x4", SMALL: ""}
    assert kept() == before


def test_nothing_is_begun_after_the_budget(model: Path, clock: None) -> None:
    found = tune(model, feeds_of, repeats=1, budget_s=0)
    assert found.rounds == 0 and found.tuning.styles == {} and found.tuned_ms == found.default_ms
    assert summary(found, 0)[-1] == f"0 of {found.all_rounds} styles fitted into 0 s: see --budget"


def test_the_command_keeps_what_sessions_then_use(
    model: Path, clock: None, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", str(model), "--dim", "n=40", "--repeats", "1"]
    assert main([*arguments, "--dry-run"]) == 0
    assert not cache.exists()
    assert capsys.readouterr().out.endswith("\nnothing is kept, as --dry-run asks\n")
    device = open_device()
    path = tunings.user_file(device.info, device.target)
    slow = Tuning({SMALL: "square-4x4", "another": "square-4x4"})
    tunings.keep(slow, path, device.info.title, device.target.features)
    assert main(arguments) == 0
    kept = load(path, device.info.title, device.target.features).styles
    assert kept == {SMALL: "", LARGE: "square-4x4", "another": "square-4x4"}
    out = capsys.readouterr().out
    assert f"kept in {path}, used from now on" in out and "square-4x4" in out
    session = InferenceSession(model, device="gpu")
    feeds = feeds_of(session)
    (got,) = session.run(None, feeds)
    assert [d.style for d in session.plan(feeds).dispatches] == ["square-4x4", "", ""]
    (want,) = InferenceSession(model, device="gpu", tuning="off").run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_a_file_for_other_machines(model: Path, clock: None, tmp_path: Path) -> None:
    output = tmp_path / "tuned.json"
    arguments = ["tune", str(model), "--dim", "n=40", "--repeats", "1", "--output", str(output)]
    assert main([*arguments, "--for", "Some GPU"]) == 0
    assert '"adapter": "Some GPU"' in output.read_text()


def test_real_times_are_measured(model: Path) -> None:
    found = tune(model, feeds_of, repeats=1, budget_s=0)
    assert {c.tuned_as for c in found.choices} == {SMALL, LARGE}
    assert 0 < sum(c.default_ms for c in found.choices) <= found.default_ms < 1e4


def test_kernels_without_elements_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    text = """agraph (float[m,64] z, float[n,64] x, float[64,32] v) => (float[m,32] e, float y) {
        e = MatMul(z, v)
        a = MatMul(x, v)
        y = ReduceSum <keepdims = 0> (a)
    }"""
    onnx.save(parse(text), path)
    feeds = {"z": np.zeros((0, 64), np.float32), "x": np.ones((40, 64), np.float32)}
    feeds["v"] = np.ones((64, 32), np.float32)
    found = tune(path, lambda session: feeds, repeats=0, budget_s=5)
    assert [c.tuned_as for c in found.choices] == [LARGE]


def test_a_model_without_kernels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    onnx.save(parse("agraph (double[3] x) => (double[3] y) { y = Neg(x) }"), path)
    with pytest.raises(DeviceError, match="nothing to tune"):
        tune(path, lambda session: {"x": np.zeros(3)}, repeats=1)


def test_operators_without_styles_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    x = {"x": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    found = tune(path, lambda session: x, repeats=1)
    assert found.choices == () and found.all_rounds == 0 and found.tuning == Tuning()


def test_nothing_is_kept_where_there_is_nothing_to_choose(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    assert main(["tune", str(path), "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("affine.onnx, x float32[") and "nothing to tune" in out
    assert "kept in" not in out and not cache.exists()
