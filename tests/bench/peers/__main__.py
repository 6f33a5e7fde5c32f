"""Measures this engine beside others, and writes a page with a table and a chart.

Models that an interrupted run has measured are not measured again: start it with the same
`--results` to go on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx

from demos import _models
from engine.ir import Array
from engine.tools.bench_report import machine, versions
from tests.bench import models
from tests.bench.integrated.fitness import fitness
from tests.bench.integrated.radv import CompileError, Compiler
from tests.bench.peers import engines, report
from tests.bench.peers.contest import Case, Found, Setup, WorkerError, contest
from tests.bench.peers.host import host_costs
from tests.bench.peers.plans import plan_costs
from tests.bench.peers.starts import cold_starts
from tests.bench.vulkan_layer import MissingError
from tests.real_models import MODELS as TRAINED
from tests.real_models import RealModel

REAL = tuple(m.name for m in TRAINED if m.name != "tashkeel_bilstm_int8")
"""Trained models that compute in float32."""


def feeds_of(model: onnx.ModelProto) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs for a benchmark model: noise, and noise upon a slope."""
    (value,) = model.graph.input
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    chance = np.random.default_rng(0)
    first = chance.standard_normal(shape).astype(np.float32)
    slope = np.linspace(-2, 2, shape[-1])
    second = (0.5 * chance.standard_normal(shape) + slope).astype(np.float32)
    return {value.name: first}, {value.name: second}


def bench_case(path: Path) -> Case:
    """A benchmark model with its inputs."""
    model = onnx.load(path, load_external_data=False)
    return Case(path.stem, path, feeds_of(model), tuple(o.name for o in model.graph.output))


def real_case(model: RealModel) -> Case:
    """A trained model with the inputs of its tests, and with others."""
    (path,) = _models.fetch([model.file])
    feeds = {n: np.asarray(a) for n, a in model.inputs().items()}
    other = {n: other_array(a) for n, a in feeds.items()}
    graph = onnx.load(path, load_external_data=False).graph
    outputs = tuple(o.name for o in graph.output)
    return Case(model.name, path, (feeds, other), outputs, max(5e-4, model.tolerance))


def other_array(array: Array) -> Array:
    """Numbers backwards; floats half that and half noise of their mean and spread.

    Noise alone is ill-conditioned for some models: ONNX Runtime differs from itself without its
    optimizations.
    """
    backwards = np.ascontiguousarray(np.flip(array))
    if array.dtype.kind != "f" or array.size < 2:
        return backwards
    noise = np.random.default_rng(3).standard_normal(array.shape)
    noise = array.mean() + noise * (array.std() or 1.0)
    mixed: Array = ((backwards + noise) / 2).astype(array.dtype)
    return mixed


def cases(names: Iterable[str], folder: Path, say: report.Say) -> list[Case]:
    """The models of names, or all; those that cannot be fetched are left out, and named."""
    wanted = list(names) or [*models.MODELS, *REAL]
    trained = {m.name: m for m in TRAINED}
    found = []
    for name in wanted:
        if name in models.MODELS:
            found.append(bench_case(models.write(folder, [name])[0]))
        elif name in trained:
            try:
                found.append(real_case(trained[name]))
            except _models.FetchError as error:
                say(f"{name} is left out: {error}")
        else:
            raise SystemExit(f"no model is named {name}; there are {[*models.MODELS, *trained]}")
    return found


def header(setup: Setup) -> dict[str, object]:
    """What a page must say of a run: machine, adapter, versions, peers, date."""
    from engine.runtime.device import choose_adapter

    adapter = choose_adapter()
    return {
        "machine": machine(),
        "adapter": adapter.title,
        "software": adapter.kind == "CPU",
        "versions": versions(),
        "threads": setup.threads,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "engines": {
            p.name: p.note if p.python(setup.home) else "not installed" for p in setup.peers
        },
    }


def peers_of(names: str | None) -> tuple[engines.Peer, ...]:
    """The peers of names separated by ";"; without names, all that are not extra."""
    if names is None:
        return tuple(p for p in engines.PEERS if not p.extra)
    known = {p.name: p for p in engines.PEERS}
    wanted = [n.strip() for n in names.split(";")]
    unknown = [n for n in wanted if n not in known]
    if unknown:
        raise SystemExit(f"no engines are named {unknown}; there are {list(known)}")
    return tuple(known[n] for n in wanted)


def integrated_compiler(say: report.Say) -> Compiler | None:
    """RADV's compiler; where something is not installed, None, and says what."""
    try:
        return Compiler()
    except MissingError as error:
        say(f"the section on integrated GPUs is left out: {error}")
        return None


def on_integrated(case: Case, compiler: Compiler | None, say: report.Say) -> list[Found]:
    """What `fitness` finds; nothing where that fails, and says why."""
    try:
        return fitness(case, compiler) if compiler else []
    except CompileError as error:
        say(f"{case.name} is left out of the section on integrated GPUs: {error}")
        return []


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of models; all by default")
    parser.add_argument("--install", action="store_true", help="make the peers' environments")
    parser.add_argument("--peers", help="names, separated by ';'")
    parser.add_argument("--minutes", type=float, default=16, help="after them no model is begun")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, help="keeps what each model gave")
    parser.add_argument("--fresh", action="store_true", help="measure again what is there")
    parser.add_argument("--page", type=Path, default=engines.ROOT / "docs" / "benchmarks.md")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    home = engines.home_folder()
    if chosen.install:
        engines.install(home)
        return 0
    setup = Setup(home, chosen.threads, peers_of(chosen.peers))
    results = chosen.results or home / "results"
    (home / "models").mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    todo = cases(chosen.models, home / "models", say)
    files = {c.name: results / f"{c.name}.json" for c in todo}
    if chosen.fresh:
        for file in files.values():
            file.unlink(missing_ok=True)
    left = [c for c in todo if not files[c.name].exists()]
    compiler = integrated_compiler(say) if left else None
    end = time.monotonic() + chosen.minutes * 60
    for place, case in enumerate(left):
        now = time.monotonic()
        if now > end:
            say(f"time is up; run this again for {', '.join(c.name for c in left[place:])}")
            break
        until = now + max(end - now, 0.0) / (len(left) - place)
        try:
            found = contest(case, setup, until, say)
            found["starts"] = cold_starts(case, setup, say)
            found["plan"] = plan_costs(case)
            found["host"] = host_costs(case, say)
            found["integrated"] = on_integrated(case, compiler, say)
        except WorkerError as error:
            found = {"model": case.name, "problem": str(error), "peers": {}}
        text = json.dumps({**header(setup), **found}, indent=1)
        partial = files[case.name].with_suffix(".part")
        partial.write_text(text)
        partial.replace(files[case.name])
    done = [json.loads(f.read_text()) for f in files.values() if f.exists()]
    report.write(chosen.page, done)
    say(f"wrote {chosen.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
