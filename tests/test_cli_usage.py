"""How commands are called wrongly, what they say of it, and what their help tells."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import InferenceSession
from engine.cli import main
from engine.commands import COMMANDS
from tests.runtime.models import AFFINE, parse


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The usage and the error of a call that argparse refuses."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    usage, _, error = capsys.readouterr().err.rpartition("error: ")
    return usage, error.strip()


def test_an_unknown_option_gets_the_usage_of_its_command(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usage, error = refused(capsys, "run", model, "--devise", "gpu", "--saev=here")
    assert usage.startswith("usage: onnx-wgpu run ")
    told = "unrecognized arguments: --devise gpu --saev=here; did you mean --device, --save?"
    assert error == told
    usage, error = refused(capsys, "explain", model, "--zebra")
    assert usage.startswith("usage: onnx-wgpu explain ")
    assert error == "unrecognized arguments: --zebra"
    usage, error = refused(capsys, "--devise")
    assert usage.startswith("usage: onnx-wgpu [-h]") and error == "unrecognized arguments: --devise"


def test_a_model_that_measure_takes_for_its_number(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, error = refused(capsys, "explain", "--measure", model)
    assert error.endswith("is not a number of at least 1; write MODEL before --measure")


@pytest.mark.gpu
def test_devices_shows_the_adapter_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--adapter", "0"]) == 0
    assert capsys.readouterr().out.startswith("0: ")
    assert main(["devices", "--adapter", "abacus"]) == 2
    assert "no adapter matches 'abacus'" in capsys.readouterr().err
    assert main(["devices", "--adapter", "²"]) == 2
    assert "no adapter matches '²'" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_word_for_each_option_and_its_default(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out.partition("options:\n")[2]
    options = text.replace("\n     ", "     ").splitlines()
    assert options
    for option in options:
        name, _, told = option.strip().partition("  ")
        assert told.strip(), f"no help for {name}"
        if name.split()[0] in ("--repeats", "--top", "--budget", "--memory"):
            assert told.rpartition("(")[2].rstrip(")").isdigit(), option
        if name.split()[0] == "--device":
            assert f"(default: {'gpu' if command == 'compare' else 'auto'})" in told


def test_options_that_contradict_each_other(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    given = f"x={tmp_path}/x.npy"
    for words, why in (
        (["--input", given, "--input", "x=random"], "--input x is given twice"),
        (["--dim", "n=3", "--dim", "n=4"], "--dim n is given twice, as 3 and as 4"),
        (["--input", given, "--dim", "n=3"], "--dim n=3, but n is 2 in "),
    ):
        assert main(["run", model, "--device", "cpu", *words]) == 2
        assert capsys.readouterr().err.startswith(f"error: {why}")
    data = ["--data", str(tmp_path), "--dim", "n=3", "--device", "cpu"]
    assert main(["compare", model, *data]) == 2
    assert "--data gives every input" in capsys.readouterr().err
    assert main(["tune", model, "--dry-run", "--output", str(tmp_path / "tuned.json")]) == 2
    assert "--dry-run keeps nothing" in capsys.readouterr().err
    assert main(["run", model, "--device", "cpu", "--input", given, "--dim", "n=2"]) == 0


def test_explain_needs_no_strings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "words.onnx"
    onnx.save(parse("g (string[n] x) => (string[k] y) { y = StringNormalizer(x) }"), path)
    assert main(["explain", str(path), "--device", "cpu"]) == 0
    assert "StringNormalizer" in capsys.readouterr().out
    assert main(["run", str(path), "--device", "cpu"]) == 2
    assert "give it as --input x=FILE.npy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("g (float[n,4] x) => (float[n,3] y) { w = Constant <value = float[5,3] w {WORDS}> () "
         "y = MatMul(x, w) }", "inner sizes 4 and 5 differ"),
        ("g (float[n] x) => (float[n] y) { w = Constant <value_int = 3> () y = Add(x, w) }",
         "tensor(int64)"),
    ],
)  # fmt: skip
def test_a_hint_follows_only_errors_that_it_can_help(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.onnx"
    onnx.save(parse(text.replace("WORDS", ", ".join(15 * ["1"]))), path)
    assert main(["run", str(path), "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_hint_is_given_where_only_much_larger_sizes_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "windows.onnx"
    windows = "MaxPool <kernel_shape = [32], strides = [64]> (x)"
    text = f"w = {windows} s = Squeeze (w) y = Transpose <perm = [0]> (s)"
    onnx.save(parse(f"g (float[1, 1, n] x) => (float[m] y) {{ {text} }}"), path)
    assert main(["run", str(path), "--device", "cpu"]) == 2
    error, sizes, _ = capsys.readouterr().err.splitlines()
    assert "does not fit rank 0" in error and "--dim n=SIZE" in sizes
    assert main(["run", str(path), "--device", "cpu", "--dim", "n=128"]) == 0


def test_a_package_that_is_not_there_is_no_matter_of_inputs(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["compare", model, "--device", "cpu", "--against", "onnxruntime"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --against onnxruntime needs `pip install onnxruntime`")


@pytest.mark.parametrize(
    ("said", "words"), [("", ""), ("Unable to allocate 12 TiB", ": Unable to allocate 12 TiB")]
)
def test_memory_that_is_not_there(
    said: str,
    words: str,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*_: object, **__: object) -> None:
        raise MemoryError(said)

    monkeypatch.setattr(InferenceSession, "run", run)
    assert main(["run", model, "--device", "cpu"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: there is not enough memory{words}"
