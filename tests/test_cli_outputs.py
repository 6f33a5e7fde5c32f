"""Outputs of commands: looked at before the work, and after the report where they fail later."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from engine.cli import main
from engine.commands import arguments
from engine.errors import EngineError
from engine.runtime import tunings
from engine.runtime.session import InferenceSession
from tests.runtime.models import AFFINE, parse
from tests.tools import plants


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    return str(path)


@pytest.fixture
def planted() -> Iterator[None]:
    yield from plants.clear_rendered()


OUTPUTS = (
    ("run", "--save"),
    ("profile", "--trace"),
    ("explain", "--html"),
    ("bench", "--json"),
    ("bench", "--chart"),
    ("compare", "--output"),
    ("tune", "--output"),
)


@pytest.mark.parametrize(("command", "option"), OUTPUTS)
def test_an_output_is_looked_at_before_the_work(
    command: str,
    option: str,
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InferenceSession, "run", lambda *words: pytest.fail("it ran"))
    place = f"{model}/out.svg"
    assert main([command, model, option, place]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {option} {place}: {model} is not a folder\n"


def test_why_an_output_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(path: Path, folder: bool = False) -> str:
        with pytest.raises(EngineError) as caught:
            arguments.check_output("--o", path, folder)
        return str(caught.value).removeprefix(f"--o {path}: ")

    assert problem(tmp_path / "no" / "a.txt") == f"there is no folder {tmp_path / 'no'}"
    assert problem(tmp_path) == "that is a folder"
    for path, folder in ((None, False), (tmp_path / "a.txt", False), (tmp_path / "a" / "b", True)):
        arguments.check_output("--o", path, folder)
    with monkeypatch.context() as patch:
        patch.setattr(arguments, "find_spec", lambda name: None)
        assert "pip install Pillow" in problem(tmp_path / "a.png")
        arguments.check_output("--o", tmp_path / "a.svg")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert problem(tmp_path / "a.txt") == f"the folder {tmp_path} can't be written to"
    assert problem(tmp_path / "a" / "b", True) == f"the folder {tmp_path} can't be written to"
    (tmp_path / "a.txt").touch()
    assert problem(tmp_path / "a.txt") == f"{tmp_path / 'a.txt'} can't be written to"


@pytest.mark.gpu
def test_tune_looks_whether_it_can_keep_what_it_finds(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setattr(tunings, "user_folder", lambda: tmp_path / "home" / "tuned")
    assert main(["tune", model]) == 2
    error = capsys.readouterr().err
    assert "home is not a folder; give --output FILE, or --dry-run to keep nothing" in error
    assert main(["tune", model, "--for", "Vega"]) == 2
    assert "--for says what adapters the file of --output is for" in capsys.readouterr().err
    assert main(["tune", model, "--dry-run", "--budget", "1"]) == 0


@pytest.mark.gpu
def test_a_report_is_printed_though_its_files_cannot_be_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command, option in OUTPUTS[:3]:
        name = tmp_path / "late" / command
        with monkeypatch.context() as patch:
            module = __import__(f"engine.commands.{command}", fromlist=["check_output"])
            patch.setattr(module, "check_output", lambda *words, **more: None)
            words = [command, model, option, str(name)]
            if command == "run":
                name.parent.touch()
            assert main(words) == 2, command
            name.parent.unlink(missing_ok=True)
        captured = capsys.readouterr()
        assert "x float32[1, 3]" in captured.out or "nodes      3" in captured.out
        assert captured.err.startswith(f"error: {name.parent}")


@pytest.mark.gpu
@pytest.mark.usefixtures("planted")
def test_compare_tells_what_it_found_though_it_cannot_write_it(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(model).with_suffix(".wrong")
    folder.touch()
    plants.expression(monkeypatch, "Tanh", "tanh({0} * 1.01)")
    assert main(["compare", model]) == 1
    captured = capsys.readouterr()
    assert "to blame: " in captured.out and captured.err == ""
    assert f"it could not be written to {folder}" in captured.out
    assert "--output DIR" in captured.out and "rerun" not in captured.out


@pytest.mark.gpu
def test_shaders_are_part_of_the_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--device", "gpu", "--json", "--wgsl"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found["shaders"][i] for i in found["kernels"][0]["shaders"]] == found["shaders"]
    assert "@compute" in found["shaders"][0]


def test_an_output_that_was_not_begun_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), arguments.whole(path):
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    with pytest.raises(OSError, match="full"), arguments.whole(path):
        path.write_text("half")
        raise OSError("the disk is full")
    assert not path.exists()
