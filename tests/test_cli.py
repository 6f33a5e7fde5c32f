"""The command line: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from rich.table import Table

import engine
from engine.cli import INTERRUPTED, main
from engine.json_text import dumps
from engine.rates import DeviceProfile
from engine.runtime import device as device_module
from engine.runtime.executor import Executor
from engine.runtime.runner import Runner
from engine.tools import console as console_module
from tests.runtime.models import AFFINE, parse
from tests.test_profiles import dense

ROOT = Path(__file__).parent.parent


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    return str(path)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that fails."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_run_describes_inputs_and_outputs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, "--device", "cpu"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("affine.onnx on the CPU (NumPy): first call ")
    assert lines[0].startswith("  ran  ") and lines[0].endswith(" nodes on the CPU")
    assert lines[1] == "  in   x float32[1, 3], b float32[3]"
    assert lines[2].startswith("  out  y float32[1, 3]  min ")
    assert len(lines) == 4


def test_run_reads_and_writes_files(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, b = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "b.npy", b)
    words = ["run", model, "--device", "cpu", "--save", str(tmp_path / "out" / "here")]
    words += ["--input", f"x={tmp_path}/x.npy", "--input", f"b={tmp_path}/b.npy"]
    assert main(words) == 0
    assert "x float32[4, 3]" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "here" / "z.npy"), -(x + b))
    assert sorted(p.name for p in (tmp_path / "out" / "here").iterdir()) == ["y.npy", "z.npy"]


def test_run_writes_every_output(tmp_path: Path) -> None:
    text = """g (float[2] x) => (seq(float[k]) s, float[2] a_b, float[4] "a/b", string[2] t,
        optional(float[2]) none) {
      a_b = Neg(x)
      "a/b" = Concat <axis = 0> (x, x)
      s = SequenceConstruct(x, "a/b")
      c = Cast <to = 8> (x)
      t = StringConcat(c, c)
      none = Optional <type = float[2]> ()
    }"""
    onnx.save(parse(text), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    words = ["run", str(tmp_path / "model.onnx"), "--input", f"x={tmp_path}/x.npy"]
    assert main([*words, "--device", "cpu", "--save", str(tmp_path / "out")]) == 0
    found = {p.name: np.load(p).tolist() for p in (tmp_path / "out").iterdir()}
    assert found == {
        "s.0.npy": [1, 2],
        "s.1.npy": [1, 2, 1, 2],
        "a_b.npy": [-1, -2],
        "_a_b.npy": [1, 2, 1, 2],
        "t.npy": ["1.01.0", "2.02.0"],
    }


def test_run_draws_the_same_inputs_each_time(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for turn in ("a", "b"):
        words = ["run", model, "--device", "cpu", "--dim", "n=5", "--save", str(tmp_path / turn)]
        assert main([*words, "--input", "b=random"]) == 0
    assert "x float32[5, 3]" in capsys.readouterr().out
    first, second = (np.load(tmp_path / turn / "z.npy") for turn in ("a", "b"))
    np.testing.assert_array_equal(first, second)
    assert np.ptp(first) > 0


@pytest.mark.gpu
def test_run_on_the_gpu(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", model, "--device", "gpu", "--adapter", "0", "--require-gpu"]
    assert main(words) == 0
    name = device_module.adapters()[0].name
    assert name in capsys.readouterr().out


def test_errors_are_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = (model, "--device", "cpu")
    absent = tmp_path / "absent.onnx"
    assert failing(capsys, "run", str(absent)) == f"error: {absent}: No such file or directory"
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x08\x0anothing of a model")
    assert "damaged.onnx" in failing(capsys, "explain", str(damaged), "--device", "cpu")
    assert "no inputs ['w']" in failing(capsys, "run", *cpu, "--input", "w=random")
    assert "NAME=VALUE, not 'x'" in failing(capsys, "run", *cpu, "--input", "x")
    assert "cannot read no.npy" in failing(capsys, "run", *cpu, "--input", "x=no.npy")
    assert "no size is named ['m']; there are ['n']" in failing(capsys, "run", *cpu, "--dim", "m=2")
    assert "a size is not a number: n=many" in failing(capsys, "run", *cpu, "--dim", "n=many")
    assert "['nonsense']" in failing(capsys, "explain", *cpu, "--disable", "nonsense")
    assert "require_gpu is set, and so is" in failing(capsys, "run", *cpu, "--require-gpu")


def test_an_error_with_drawn_inputs_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sum.onnx"
    onnx.save(parse("g (float[a,n] x, float[b,m] w) => (float[p,q] y) { y = MatMul(x, w) }"), path)
    words = ("run", str(path), "--device", "cpu", "--dim", "n=3", "--dim", "m=2")
    assert main(words) == 2
    line, *hints = capsys.readouterr().err.splitlines()
    assert line.startswith("error: MatMul 'y'")
    assert hints == [
        "  sizes guessed: a=1; if the model wants others: --dim a=SIZE",
        "  inputs drawn: x float32[1, 3], w float32[1, 2]; give real ones as --input x=FILE.npy",
    ]


def test_a_file_that_cannot_be_written_is_no_matter_of_inputs(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "--device", "cpu", "--save", model]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a folder" in line


def test_usage_errors(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and "--version" in capsys.readouterr().out
    for words in (["walk"], ["run"], ["run", model, "--device", "tpu"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
    with pytest.raises(SystemExit):
        main(["bench", model, "--repeats", "0"])
    assert "'0' is not a number of at least 1" in capsys.readouterr().err
    for text in ("nan", "-1", "inf", "x"):
        with pytest.raises(SystemExit):
            main(["compare", model, f"--tolerance={text}"])
        assert f"'{text}' is not a number of at least 0" in capsys.readouterr().err


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"onnx-wgpu {engine.__version__}\n"
    assert {"InferenceSession", "DeviceValue", "__version__"} <= set(dir(engine))


@pytest.mark.gpu
def test_explain_as_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--device", "gpu", "--dim", "n=7"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("device     ")
    assert "subgraph 0: GPU, 3 nodes in 1 kernel; predicted " in text
    assert "kernel 0: Add + Tanh + Neg" in text
    assert "  → upload x (84 B), b (12 B)" in text
    assert "sizes      n=7" in text
    assert "nodes      3: 3 on the GPU" in text
    assert "@compute" not in text and "passes (--passes shows all" in text


@pytest.mark.gpu
def test_explain_with_passes_and_shaders(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--device", "gpu", "--passes", "--wgsl"]) == 0
    text = capsys.readouterr().out
    assert "+ elementwise-chain: Tanh" in text
    assert "// shader 0 of 1\n// kernel 0: Add + Tanh + Neg (" in text
    assert "@compute" in text


@pytest.mark.gpu
def test_a_disabled_rule_shows_in_explain(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", model, "--device", "gpu", "--disable", "elementwise-chain"]
    assert main(words) == 0
    assert "; 3 kernels" in capsys.readouterr().out


def test_explain_as_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [n["op_type"] for n in found["nodes"]] == ["Add", "Tanh", "Neg"]
    assert {n["device"] for n in found["nodes"]} == {"cpu"}
    assert found["nodes"][0]["reason"] == "device='cpu' was asked for"
    assert found["binding"] == {"n": 1}
    assert found["transfers"] == [] and "shaders" not in found


@pytest.mark.gpu
def test_require_gpu_lists_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "unique.onnx"
    onnx.save(parse("g (float[n] x) => (float[k] y) { a = Abs(x) y = Unique(a) }"), path)
    assert main(["run", str(path), "--device", "gpu", "--require-gpu"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: require_gpu is set, but 1 of 2 nodes run on the CPU:")
    assert "  there is no GPU kernel for Unique-28: 1 Unique\n    y\n" in error
    assert "random" not in error


@pytest.mark.gpu
def test_bench_compares_both_devices(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", model, "--repeats", "3", "--dim", "n=4", "--no-cold"]) == 0
    text = capsys.readouterr().out
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "affine.onnx, x float32[4, 3], b float32[3]"
    assert lines[1].startswith("machine: ") and lines[2].startswith("versions: Python 3")
    assert lines[3] == "CPU: NumPy"
    assert "; 3 nodes in 1 kernel and 1 submit, 0 on the CPU; 60 B up, 96 B down" in lines[4]
    assert lines[5].startswith("ORT CPU: ONNX Runtime ")
    for row in ("session creation", "first call", "warm call, median", "warm call, least"):
        (line,) = [line for line in lines if line.startswith(row)]
        assert all(float(cell) >= 0 for cell in line.split()[-3:])
    for part in ("compute on the GPU", "upload", "download", "encode", "bind sizes", "rest"):
        (line,) = [line for line in lines if line.startswith(part)]
        assert line.split()[-1] == "-", "ONNX Runtime does not tell"
    assert not any(line.startswith("process start") for line in lines)
    assert sum("the GPU " in line and "times as" in line for line in lines) == 2


@pytest.mark.gpu
def test_bench_writes_figures_and_a_chart(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", model, "--repeats", "2", "--no-cold", "--no-peer", "--require-gpu"]
    files = ["--json", f"{tmp_path}/b.json", "--chart", f"{tmp_path}/b.svg"]
    assert main([*words, *files]) == 0
    found = json.loads((tmp_path / "b.json").read_text())
    assert [m["device"] for m in found["measured"]] == ["cpu", "gpu"]
    assert found["measured"][1]["device_nbytes"] > 0 and found["measured"][0]["device_nbytes"] == 0
    assert len(found["measured"][1]["warm_ms"]) == 2 and "processor" in found["machine"]
    assert ">GPU</text>" in (tmp_path / "b.svg").read_text()
    for wrong in (["--chart", "b.txt"], ["--cool-down", "-1"], ["--cool-down", "soon"]):
        with pytest.raises(SystemExit):
            main([*words, *wrong])


@pytest.mark.gpu
def test_bench_can_demand_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    double = AFFINE.replace("float", "double")
    onnx.save(parse(double), tmp_path / "double.onnx")
    words = ["bench", f"{tmp_path}/double.onnx", "--require-gpu", "--no-cold", "--no-peer"]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and "float64" in captured.err


@pytest.mark.gpu
def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    found = device_module.adapters()
    for info in found:
        assert f"{info.index}: {info.name}" in text
        assert info.driver in text
    assert text.count("workgroup memory") == len(found)
    assert "missing    nothing that the engine needs" in text


def test_devices_without_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_module, "adapters", lambda: ())
    assert main(["devices"]) == 1
    assert "mesa-vulkan-drivers" in capsys.readouterr().out


def test_a_weak_adapter_says_what_it_lacks() -> None:
    weak = device_module.AdapterInfo(
        3,
        "Old GPU",
        "driver 1",
        "Vulkan",
        "IntegratedGPU",
        frozenset(),
        {"max-buffer-size": 1 << 20, "max-compute-invocations-per-workgroup": 128},
    )
    text = console_module.devices_text([weak])
    assert "integrated GPU" in text and "f16 no, subgroups no" in text
    assert "max-buffer-size is 1048576, the baseline 268435456" in text
    assert "max-compute-invocations-per-workgroup is 128, the baseline 256" in text


def test_long_lines_are_folded_below_their_last_column() -> None:
    fold = console_module.folded
    assert fold("device     short", 20) == ["device     short"]
    assert fold("device     one two three", 20) == ["device     one two", "           three"]
    row = "  0.1 ms  Conv  a.name    kernel 0: Conv + Relu"
    assert fold(row, 40) == ["  0.1 ms  Conv  a.name    kernel 0: Conv", " " * 26 + "+ Relu"]
    assert fold("plain words only", 12) == ["plain words", "    only"]
    row = "  0.1 ms  Conv  a.name              kernel 0: Conv + Relu"
    assert fold(row, 50) == ["  0.1 ms  Conv  a.name", " " * 16 + "kernel 0: Conv + Relu"]


def test_tables_have_room_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(title="a title")
    for name in ("one", "two"):
        table.add_column(name)
    table.add_row("x" * 90, "y y " * 20)
    for columns, lines in (("", 1), ("100", 2)):
        monkeypatch.setenv("COLUMNS", columns)
        console_module.show(table)
        text = capsys.readouterr().out.splitlines()
        assert all(line == line.rstrip() for line in text) and text[0].strip() == "a title"
        assert (sum("y" in line for line in text) == 1) == (lines == 1)
        assert max(map(len, text)) > 100 or lines > 1


@pytest.mark.gpu
def test_commands_count_the_same_nodes_and_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "view.onnx"
    graph = """g (float[n, 6] x) => (float[m, 2] y, float[n, 6] z) {
      a = Exp(x)
      s = Constant <value_ints = [-1, 2]> ()
      b = Reshape(a, s)
      y = Softmax(b)
      z = Softmax(a)
    }"""
    onnx.save(parse(graph), path)
    words = [str(path), "--dim", "n=1"]
    assert main(["explain", *words, "--device", "gpu", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["gpu_nodes"] < summary["nodes"], "there is a view"
    count = f"{summary['gpu_nodes']} nodes"
    assert main(["run", *words, "--device", "gpu"]) == 0
    assert f"ran  {count} on the GPU\n" in capsys.readouterr().out
    assert main(["bench", *words, "--no-cold", "--no-peer", "--repeats", "1"]) == 0
    text = capsys.readouterr().out
    assert f"; {count} in " in text
    assert f"{summary['upload_nbytes']} B up, {summary['download_nbytes']} B down" in text
    assert (summary["upload_nbytes"], summary["download_nbytes"]) == (24, 48)


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--passes"], ["--json"]])
def test_a_reader_that_has_seen_enough_is_no_finding(model: str, more: list[str]) -> None:
    command = [sys.executable, "-m", "engine", "explain", model, "--device", "cpu", *more]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout is not None and started.stderr is not None
    started.stdout.close()
    assert (started.wait(), started.stderr.read()) == (2, b"")


@pytest.mark.slow
def test_the_module_is_the_command(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine"]
    done = subprocess.run(
        [*command, "run", model, "--device", "cpu"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("affine.onnx on the CPU (NumPy)")
    done = subprocess.run(
        [*command, "run", str(tmp_path / "absent.onnx")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr


@pytest.mark.gpu
def test_explain_measures_and_draws(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    words = ["explain", model, "--device", "gpu", "--measure", "2", "--html", str(page)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert " a call, median of 2 (kernels " in text
    assert text.endswith(f"\nwrote {page}\n") and "subgraph 0" not in text
    content = page.read_text(encoding="utf-8")
    assert "<title>affine.onnx</title>" in content and '"calls":2' in content


@pytest.mark.gpu
def test_explain_reports_before_it_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "unique.onnx"
    onnx.save(parse("g (float[4] x) => (float[k] y) { a = Abs(x) y = Unique(a) }"), path)
    assert main(["explain", str(path), "--require-gpu"]) == 1
    captured = capsys.readouterr()
    assert "nodes      2: 1 on the GPU, 1 on the CPU" in captured.out
    assert captured.err.startswith("error: require_gpu is set, but 1 of 2 nodes run on the CPU:")


def test_profiles_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--profile", "m1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Apple M1") and "multiply-adds in register tiles" in text
    assert "published: 68.3 GB/s" in text
    assert main(["devices", "--profile", "m1", "--json"]) == 0
    assert DeviceProfile.from_json(capsys.readouterr().out) == DeviceProfile.builtin("m1")
    assert main(["devices", "--profile", "abacus"]) == 2
    assert "no device profile 'abacus'" in capsys.readouterr().err


@pytest.mark.gpu
def test_the_measured_profile_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--profile"]) == 0
    text = capsys.readouterr().out
    assert "beside" in text and "measured" in text and "explain --profile NAME" in text


@pytest.mark.gpu
def test_explain_plans_as_for_another_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(dense(1024, 2, rows=256), path)
    assert main(["explain", str(path), "--profile", "vega8"]) == 0
    assert "chosen     the GPU, " in capsys.readouterr().out
    assert main(["explain", str(path), "--profile", "lavapipe"]) == 0
    assert "chosen     the CPU: the GPU would take" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
def test_any_encoding_of_a_pipe_will_do(model: str, encoding: str) -> None:
    command = [sys.executable, "-m", "engine", "explain", model, "--device", "gpu"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert "  -> upload x" in text and "  <- download y" in text


def test_json_has_no_words_for_what_is_not_finite() -> None:
    content = {"a": [1.5, float("nan")], "b": (float("inf"), {"c": -float("inf")}), "d": True}
    found = json.loads(dumps(content), parse_constant=pytest.fail)
    assert found == {"a": [1.5, "NaN"], "b": ["Infinity", {"c": "-Infinity"}], "d": True}


IN_A_CALL, IN_A_FILE = "in a call", "while a file is written"


@pytest.mark.parametrize(
    ("words", "moment"),
    [
        (["run", "--save", "OUT"], IN_A_CALL),
        (["run", "--save", "OUT"], IN_A_FILE),
        (["bench", "--json", "OUT/a.json", "--no-cold", "--no-peer"], IN_A_CALL),
        (["bench", "--json", "OUT/a.json", "--no-cold", "--no-peer"], IN_A_FILE),
        (["explain", "--html", "OUT/a.html"], IN_A_CALL),
        (["explain", "--html", "OUT/a.html"], IN_A_FILE),
        (["profile", "--device", "cpu", "--trace", "OUT/a.json"], IN_A_CALL),
        (["profile", "--device", "cpu", "--trace", "OUT/a.json"], IN_A_FILE),
        (["compare", "--output", "OUT"], IN_A_CALL),
    ],
)
def test_an_interrupt_ends_in_a_line_and_leaves_no_half_file(
    words: list[str],
    moment: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    def half(path: Path, *args: object, **options: object) -> None:
        with open(path, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    if moment == IN_A_CALL:
        monkeypatch.setattr(Executor, "run", stop)
        monkeypatch.setattr(Runner, "plan", stop)
    else:
        monkeypatch.setattr(Path, "write_text", half)
        monkeypatch.setattr(np, "save", half)
    command, *rest = (word.replace("OUT", str(out)) for word in words)
    assert main([command, model, *rest]) == INTERRUPTED == 130
    assert capsys.readouterr().err.splitlines() == ["interrupted"]
    assert list(out.iterdir()) == []


def test_tune_says_that_nothing_is_kept(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.runtime.device.open_device", stop)
    assert main(["tune", model]) == INTERRUPTED
    assert capsys.readouterr().err.startswith("interrupted: nothing is kept")


def test_a_process_that_starts_others_takes_them_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process that bench times is ended where bench is."""
    from engine.tools import bench_start

    made: list[subprocess.Popen[str]] = []
    started = subprocess.Popen

    class Stopped(started):  # type: ignore[type-arg, misc, valid-type]
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)
            made.append(self)
            self.stdout = SimpleNamespace(readline=self.interrupted, close=self.stdout.close)

        def interrupted(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(bench_start.subprocess, "Popen", Stopped)
    with pytest.raises(KeyboardInterrupt):
        bench_start.starts("cpu", "a.onnx", {}, {})
    assert len(made) == 1 and made[0].wait(30)
