"""Progress: what the library tells, and what a person at a terminal sees of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import InferenceSession
from engine.progress import listening, tell
from engine.tools.console import status
from tests.runtime.models import AFFINE, parse

ROOT = Path(__file__).parent.parent.parent
CHAIN = """g (float[n,8] x) => (float[n,8] y) {
  a = Softmax(x)
  b = Transpose<perm = [1, 0]>(a)
  c = MatMul(a, b)
  y = MatMul(c, x)
}"""


def heard(device: str) -> list[str]:
    """What is told while a model is loaded and run once."""
    told: list[str] = []
    with listening(told.append):
        session = InferenceSession(parse(CHAIN), device=device)
        session.run(None, {"x": np.ones((3, 8), np.float32)})
    session.close()
    tell("nobody hears this")
    return told


def test_loading_and_planning_are_told() -> None:
    told = heard("cpu")
    assert told[0] == "reading the model"
    for text in ("inferring shapes, folding", "optimising: chains", "placing nodes on devices"):
        assert text in told
    assert "nobody hears this" not in told


def test_the_innermost_listener_hears() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with listening(outer.append):
        tell("a")
        with listening(inner.append):
            tell("b")
        tell("c")
    assert (outer, inner) == (["a", "c"], ["b"])


@pytest.mark.gpu
def test_shaders_are_counted_and_compiled_once() -> None:
    from engine.runtime.device import open_device

    open_device().close()
    told = [text for text in heard("gpu") if text.startswith("compiling")]
    counts = [re.fullmatch(r"compiling shader (\d+) of (\d+): \S+", text) for text in told]
    numbers = [(int(m[1]), int(m[2])) for m in counts if m is not None]
    assert len(numbers) == len(told) >= 3
    assert [n for n, _ in numbers] == list(range(1, len(numbers) + 1))
    assert {of for _, of in numbers} == {len(numbers)}
    assert not any(text.startswith("compiling") for text in heard("gpu"))


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with status("loading") as progress:
        tell("reading the model")
        progress("running")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_standard_error_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with status("loading") as progress:
        progress("running")


def at_a_terminal(arguments: Sequence[str], cache: Path) -> tuple[str, str]:
    """Standard output of a command, and what its standard error, a terminal, shows."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    leader, follower = pty.openpty()
    settings = {"XDG_CACHE_HOME": str(cache), "MESA_SHADER_CACHE_DISABLE": "true"}
    settings |= {"TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "engine", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, **settings},
        text=True,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            read = os.read(leader, 4096)
        except OSError:
            break
        if not read:
            break
        shown += read
    os.close(leader)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown.decode()
    return out, shown.decode()


@pytest.mark.gpu
@pytest.mark.slow
def test_a_person_at_a_terminal_sees_what_takes_time(tmp_path: Path) -> None:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    out, shown = at_a_terminal(["run", str(path), "--device", "auto"], tmp_path / "cache")
    assert out.startswith("affine.onnx on ") and "\x1b" not in out
    assert "loading the model: calibrating, once: measuring the speed of" in shown
    assert "running" in shown
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").split("\n")
    assert max(map(len, lines)) <= 100
    assert shown.rstrip().endswith(("\x1b[?25h", "\x1b[2K", "\x1b[1A")), "the line is taken away"


def test_a_command_without_a_terminal_says_only_its_result(tmp_path: Path) -> None:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    command = [sys.executable, "-m", "engine", "run", str(path), "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "" and "\x1b" not in done.stdout
