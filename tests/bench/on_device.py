"""A report on one machine's GPU: models right, models timed, kernels against the device's peak.

Started by `tests/on_device.sh`, which says more. Everything runs in processes of its own, with a
limit each: a driver that hangs or aborts costs one step, not the report.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from demos import _models
from engine.tools.bench_report import machine, versions
from tests.bench import models as bench_models
from tests.bench.peers.__main__ import feeds_of
from tests.real_models import MODELS, RealModel

ROOT = Path(__file__).resolve().parents[2]
PROFILED = (
    *("matmul1024", "conv3x3", "mobilenet", "transformer", "light_resnet50"),
    *("ppocrv4_det", "ppocrv4_rec", "minilm_w8"),
)
"""Benchmark models, and trained ones, that are timed and profiled."""
SHORT_PROFILED = ("conv3x3", "ppocr_cls")
SHORT_CHECKED = ("ppocr_cls", "mtcnn_rnet", "silero_vad_plain")
TESTS = tuple(f"tests/ops/test_{n}.py" for n in ("matmul", "conv", "conv_tiles", "softmax"))
"""Kernels that depend most on the driver."""


@dataclass
class Report:
    """What is known so far; written anew after every step.

    Attributes:
        folder: where it is written.
        end: `time.monotonic()` when the last step has to be over.
        lines: of README.md.
        left_out: steps for which no time was left.
        wrong: models that gave wrong outputs, and kernels whose tests failed.
    """

    folder: Path
    end: float
    lines: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A line on the terminal and in the report."""
        print(f"[{max(self.end - time.monotonic(), 0):4.0f} s left] {text}", flush=True)
        self.lines.append(text)
        self.write()

    def write(self) -> None:
        tail = [f"Left out for lack of time: {', '.join(self.left_out)}"] if self.left_out else []
        tail.append("WRONG: " + ", ".join(self.wrong) if self.wrong else "Nothing was wrong.")
        text = "\n".join(["# On this device", "", *self.lines, "", *tail, ""])
        (self.folder / "README.md").write_text(text, encoding="utf-8")

    def run(self, name: str, command: Sequence[str], most_s: float) -> subprocess.CompletedProcess:
        """Runs a command within its share of the time; its output goes to a file.

        Raises: subprocess.TimeoutExpired if it takes longer, or no time is left.
        """
        left = self.end - time.monotonic()
        if left < 3:
            raise subprocess.TimeoutExpired(list(command), left)
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=min(most_s, left),
            env={**os.environ, "COLUMNS": "160"},
        )
        (self.folder / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        return done

    def step(self, name: str, action: Callable[[], None]) -> None:
        """Runs a step; one that takes too long is named, and the next one begins."""
        try:
            action()
        except subprocess.TimeoutExpired:
            self.left_out.append(name)
            self.write()


def check_model(report: Report, name: str) -> None:
    """Compares a model on the GPU with ONNX Runtime's CPU provider, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.on_device", "--check", name]
    done = report.run(f"check-{name}", command, 60)
    said = (done.stdout.strip().splitlines() or ["no message"])[-1]
    if done.returncode == 3:
        report.say(f"- {name}: not fetched, left out")
        return
    if done.returncode:
        report.wrong.append(name)
        said = (done.stderr.strip().splitlines() or [said])[-1]
    report.say(f"- {name}: {said}")


def check(name: str) -> int:
    """The process of `check_model`: 0 if right, 1 if wrong, 3 if the model can't be had."""
    import engine

    model = {m.name: m for m in MODELS}[name]
    try:
        _models.fetch([model.file])
    except _models.FetchError as error:
        print(error)
        return 3
    path, worst = _models.cache_folder() / model.file.name, 0.0
    for make in filter(None, (model.inputs, model.alt_inputs)):
        feeds = make()
        wanted = model.reference(feeds)
        with engine.InferenceSession(path, device="gpu") as session:
            found = session.run(None, feeds)
            places = [place for _, place in session.executed()]
        for mine, right in zip(found, wanted, strict=True):
            if mine.shape != right.shape:
                print(f"shape {mine.shape} where {right.shape} is right", file=sys.stderr)
                return 1
            size = max(float(np.abs(right).max(initial=0)), 1e-30)
            gap = float(np.abs(mine.astype(np.float64) - right).max(initial=0)) / size
            worst = gap if gap != gap else max(worst, gap)
        if model.meaning is not None and make is model.inputs:
            read, word = model.meaning
            if read(found) != word:
                print(f"it says {read(found)!r}, and {word!r} is right", file=sys.stderr)
                return 1
    if not worst <= model.tolerance:
        print(f"error {worst:.1e}, more than {model.tolerance:.1e}", file=sys.stderr)
        return 1
    print(f"right, error {worst:.1e}; {places.count('gpu')} of {len(places)} nodes on the GPU")
    return 0


def arguments_of(name: str, folder: Path) -> tuple[Path, list[str]]:
    """Path of a model, and the arguments of a command that give it its inputs."""
    if name in bench_models.MODELS:
        (path,) = bench_models.write(folder / "models", [name])
        import onnx

        feeds = feeds_of(onnx.load(path, load_external_data=False))[0]
    else:
        model: RealModel = {m.name: m for m in MODELS}[name]
        (path,) = _models.fetch([model.file])
        feeds = dict(model.inputs())
    words = []
    for place, (key, array) in enumerate(feeds.items()):
        file = folder / "models" / f"{name}-{place}.npy"
        file.parent.mkdir(exist_ok=True)
        np.save(file, array)
        words += ["--input", f"{key}={file}"]
    return path, words


def measure(report: Report, name: str, repeats: int) -> None:
    """Times a model against the CPU, and its kernels against the device's ceilings."""
    try:
        path, inputs = arguments_of(name, report.folder)
    except _models.FetchError as error:
        report.say(f"- {name}: left out, {error}")
        return
    engine = [sys.executable, "-m", "engine"]
    chart = report.folder / f"bench-{name}.svg"
    more = ["--repeats", str(repeats), "--chart", str(chart)]
    figures = report.folder / f"bench-{name}.json"
    bench = [*engine, "bench", str(path), *inputs, *more, "--json", str(figures)]
    done = report.run(f"bench-{name}", bench, 90)
    if done.returncode:
        report.wrong.append(f"bench {name}")
        report.say(f"- {name}: bench failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        return
    found = {m["device"]: m for m in json.loads(figures.read_text())["measured"]}
    times = ", ".join(f"{d} {m['median_ms']:.2f} ms" for d, m in found.items())
    report.say(f"- {name}: {times}; host overhead {found['gpu']['overhead_ms']:.2f} ms")
    words = ["profile", str(path), *inputs, "--device", "gpu", "--repeats", "5"]
    report.run(f"profile-{name}", [*engine, *words, "--top", "12"], 60)
    done = report.run(f"profile-{name}-all", [*engine, *words, "--json"], 60)
    if done.returncode == 0:
        report.say("  " + share_of_peak(json.loads(done.stdout)))


def share_of_peak(profile: dict[str, object]) -> str:
    """The kernels' share of what the device could do in their time, and the slowest three."""
    kernels = profile.get("kernels")
    rows = [k for k in kernels if k.get("ms")] if isinstance(kernels, list) else []
    total = sum(k["ms"] for k in rows)
    if not total:
        return "no kernel was timed"
    share = sum(k["ms"] * k.get("ceiling", 0.0) for k in rows) / total
    slowest = sorted(rows, key=lambda k: -float(k["ms"]))[:3]
    words = ", ".join(
        f"{k['name']} [{k['shader']}] {k['ms']:.2f} ms, {k.get('ceiling', 0.0):.0%}"
        for k in slowest
    )
    return f"{share:.0%} of the device's ceilings over {total:.2f} ms of kernels; slowest: {words}"


def test_kernels(report: Report) -> None:
    """The tests of the kernels that differ most between drivers, with all that the adapter has."""
    os.environ["ENGINE_TARGET"] = "adapter"
    quiet = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-m", "not slow"]
    done = report.run("tests", [sys.executable, "-m", "pytest", *quiet, *TESTS], 120)
    last = (done.stdout.strip().splitlines() or ["no message"])[-1]
    if done.returncode:
        report.wrong.append("tests of kernels")
    report.say(f"- kernels with all features of the adapter: {last}")


def header(report: Report) -> None:
    """Machine, adapter, versions."""
    done = report.run("devices", [sys.executable, "-m", "engine", "devices"], 60)
    if done.returncode:
        raise SystemExit(f"no adapter: {done.stderr.strip()}")
    found = machine()
    report.say(f"- {found['processor']}, {found['cores']} cores; {found['system']}")
    report.say("- " + ", ".join(f"{k} {v}" for k, v in versions().items()))
    report.say("- adapters in devices.txt; the first: " + done.stdout.splitlines()[0])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    report.say(f"- commit {commit.stdout.strip() or 'unknown'}, {time.strftime('%Y-%m-%d %H:%M')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("on_device_report"))
    parser.add_argument("--short", action="store_true", help="few models, for a trial")
    parser.add_argument("--seconds", type=float, default=470.0, help="for all of it")
    parser.add_argument("--started", type=float, default=None, help="seconds since 1970")
    parser.add_argument("--check", metavar="MODEL", help="only compare this one")
    chosen = parser.parse_args()
    if chosen.check:
        return check(chosen.check)
    spent = time.time() - chosen.started if chosen.started else 0.0
    chosen.folder.mkdir(parents=True, exist_ok=True)
    report = Report(chosen.folder.resolve(), time.monotonic() + chosen.seconds - spent)
    header(report)
    report.say("\n## Right or wrong, against ONNX Runtime on the CPU\n")
    names = [m.name for m in MODELS if m.in_default_suite]
    for name in SHORT_CHECKED if chosen.short else names:
        report.step(f"check of {name}", lambda name=name: check_model(report, name))
    if not chosen.short:
        report.step("tests of kernels", lambda: test_kernels(report))
    report.say("\n## How fast: medians of warm calls; files bench-*.txt, profile-*.txt\n")
    for name in SHORT_PROFILED if chosen.short else PROFILED:
        repeats = 5 if chosen.short else 20
        report.step(f"times of {name}", lambda name=name, n=repeats: measure(report, name, n))
    shutil.rmtree(report.folder / "models", ignore_errors=True)
    report.write()
    print(f"wrote {report.folder}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
