"""Command line: `onnx-wgpu run | explain | bench | ops | devices`. Thin: the library does it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import EngineError, UnsupportedOpError

if TYPE_CHECKING:
    from engine.ir import Array
    from engine.runtime.session import InferenceSession


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, or 1 after an error in one line on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments) or 0)
    except (EngineError, OSError) as error:
        hint = "" if isinstance(error, UnsupportedOpError) else getattr(arguments, "hint", "")
        print(f"error: {error}{hint}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onnx-wgpu", description="Runs ONNX models on the GPU through WebGPU shaders."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a model once and describe its outputs")
    _model_arguments(run)
    run.add_argument("--save", metavar="DIR", type=Path, help="write outputs as DIR/NAME.npy")
    run.set_defaults(command=_run)
    explain = commands.add_parser("explain", help="where each node runs, why, and what it costs")
    _model_arguments(explain)
    explain.add_argument("--wgsl", action="store_true", help="print the generated shaders")
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.add_argument("--passes", action="store_true", help="what each pass did, or nearly did")
    explain.set_defaults(command=_explain)
    bench = commands.add_parser("bench", help="CPU against GPU latency")
    _input_arguments(bench)
    bench.add_argument("--repeats", type=_count, default=10, help="warm calls per device")
    bench.add_argument("--no-cold", action="store_true", help="leave out the cold start")
    bench.set_defaults(command=_bench)
    ops = commands.add_parser("ops", help="which operators run where, and what limits them")
    ops.add_argument("names", nargs="*", metavar="NAME", help="operators; all by default")
    ops.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    ops.set_defaults(command=_ops)
    devices = commands.add_parser("devices", help="the GPUs that can be used, and their limits")
    devices.set_defaults(command=_devices)
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or text == "0":
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _input_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an .onnx file")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input; NAME=random (the default for all) draws one, seeded",
    )
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="a symbolic size; by default 1 for the first of an input, 64 for others",
    )
    parser.add_argument("--adapter", help="index or part of the name; see `devices`")
    parser.add_argument(
        "--target",
        choices=("baseline", "adapter"),
        help="kernels use what every device guarantees, or all that this one offers (default)",
    )
    parser.add_argument(
        "--disable", action="append", default=[], metavar="NAME", help="a pass or fusion rule"
    )


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    _input_arguments(parser)
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument(
        "--require-gpu", action="store_true", help="fail if any node would run on the CPU"
    )


def _adapter(arguments: argparse.Namespace) -> int | str | None:
    text = arguments.adapter
    return int(text) if text is not None and text.isdigit() else text


def _session(arguments: argparse.Namespace) -> InferenceSession:
    from engine.runtime.session import InferenceSession

    return InferenceSession(
        arguments.model,
        device=arguments.device,
        require_gpu=arguments.require_gpu,
        adapter=_adapter(arguments),
        disable=arguments.disable,
        target=arguments.target,
    )


def _feeds(session: InferenceSession, arguments: argparse.Namespace) -> dict[str, Array]:
    from engine.tools.inputs import describe, make_inputs, parse_pairs

    given = parse_pairs(arguments.input, "--input")
    feeds = make_inputs(session, given, parse_pairs(arguments.dim, "--dim"))
    drawn = {n: a for n, a in feeds.items() if given.get(n, "random") == "random"}
    if drawn:
        arguments.hint = f" (with random {describe(drawn)}; give others with --input or --dim)"
    return feeds


def _run(arguments: argparse.Namespace) -> None:
    import numpy as np

    from engine.tools.console import console, status
    from engine.tools.inputs import describe

    with status("loading the model"):
        session = _session(arguments)
        feeds = _feeds(session, arguments)
    with status("running"):
        results = session.run(None, feeds)
    out = console()
    where = Counter(device for _, device in session.executed())
    nodes = ", ".join(f"{count} nodes on the {d.upper()}" for d, count in where.most_common())
    took = f"first call {session.times.total * 1e3:.2f} ms (warm: see bench)"
    first = f"{arguments.model.name} on {session.device_name}: {took}"
    lines = [
        first,
        f"  ran  {nodes}" if nodes else "  ran  nothing: the result is constant",
        f"  in   {describe(feeds)}",
    ]
    for arg, value in zip(session.get_outputs(), results, strict=True):
        lines.append(f"  out  {arg.name} {_value_text(value)}")
    out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        for arg, value in zip(session.get_outputs(), results, strict=True):
            name = "".join(c if c.isalnum() or c in "-_." else "_" for c in arg.name)
            np.save(arguments.save / f"{name}.npy", np.asarray(value))


def _value_text(value: object) -> str:
    """Dtype, shape and range of an output."""
    import numpy as np

    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    text = f"{value.dtype}{list(value.shape)}"
    if value.size and value.dtype.kind in "fiub":
        low, high, mean = value.min(), value.max(), value.astype(np.float64).mean()
        text += f"  min {low:.6g}  max {high:.6g}  mean {mean:.6g}"
    return text


def _explain(arguments: argparse.Namespace) -> None:
    from engine.tools.console import console, status

    with status("planning"):
        session = _session(arguments)
        report = session.explain(_feeds(session, arguments))
    out = console()
    if arguments.json:
        print(report.to_json())
        return
    out.print(
        report.to_text(passes=arguments.passes), markup=False, highlight=False, soft_wrap=True
    )
    if arguments.wgsl:
        print(report.wgsl() or "no shaders: every node is on the CPU (see --device gpu)")


def _bench(arguments: argparse.Namespace) -> None:
    from engine.tools.bench import bench
    from engine.tools.console import bench_notes, bench_table, console, status

    with status("measuring") as progress:
        results = bench(
            arguments.model,
            lambda session: _feeds(session, arguments),
            repeats=arguments.repeats,
            cold=None if arguments.no_cold else _same_inputs(arguments),
            adapter=_adapter(arguments),
            disable=arguments.disable,
            target=arguments.target,
            progress=progress,
        )
    *lines, verdict = bench_notes(arguments.model.name, results)
    out = console()
    out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    out.print(bench_table(results))
    out.print(verdict, markup=False, highlight=False)


def _same_inputs(arguments: argparse.Namespace) -> list[str]:
    """The arguments of `run` for the inputs of `bench`."""
    pairs = [("--input", i) for i in arguments.input] + [("--dim", d) for d in arguments.dim]
    pairs += [("--disable", name) for name in arguments.disable]
    pairs += [("--target", arguments.target)] if arguments.target else []
    return [word for pair in pairs for word in pair]


def _ops(arguments: argparse.Namespace) -> None:
    from engine.tools.operators import operator_rows, select, to_markdown

    rows = select(operator_rows(), arguments.names)
    if arguments.markdown:
        print(to_markdown(rows), end="")
        return
    from engine.tools.console import console, operators_table

    console().print(operators_table(rows))


def _devices(arguments: argparse.Namespace) -> int:
    from engine.runtime.device import adapters
    from engine.tools.console import console, devices_text

    found = adapters()
    if not found:
        print(
            "No GPU adapter was found; models run on the CPU.\n"
            "  Linux: install your GPU's Vulkan driver, or `apt-get install mesa-vulkan-drivers`\n"
            "         for Mesa's drivers and lavapipe, which runs on the CPU.\n"
            "  Windows and macOS: update the graphics driver; DX12 and Metal come with the system."
        )
        return 1
    console().print(devices_text(found), markup=False, highlight=False, soft_wrap=True)
    return 0
