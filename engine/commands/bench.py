"""`onnx-wgpu bench`: CPU against GPU latency."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.commands.arguments import (
    adapter,
    check_output,
    count,
    input_arguments,
    make_feeds,
    whole,
)
from engine.json_text import dumps

HELP = "CPU against GPU latency"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    input_arguments(parser)
    parser.add_argument(
        "--repeats",
        type=count,
        default=10,
        help="warm calls of each (%(default)s)",
    )
    parser.add_argument(
        "--no-cold", action="store_true", help="start no new processes: no cold start, no memory"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument(
        "--cool-down",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="rest before each warm call, for machines that slow down when they are hot",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--chart", type=chart_file, metavar="FILE", help="draw an .svg, or a .png (with Pillow)"
    )


def seconds(text: str) -> float:
    """A time of 0 or more, as an argument's type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def chart_file(text: str) -> Path:
    """A path that a chart can be written to, as an argument's type."""
    if Path(text).suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither an .svg nor a .png")
    return Path(text)


def execute(arguments: argparse.Namespace) -> None:
    """Measures, prints the table, and writes what was asked for."""
    from engine.tools import bench_report
    from engine.tools.bench import Settings, bench
    from engine.tools.console import bench_table, say, show, status

    check_output("--json", arguments.json)
    check_output("--chart", arguments.chart)
    settings = Settings(
        peer=not arguments.no_peer,
        repeats=arguments.repeats,
        cold=not arguments.no_cold,
        cool_down_s=arguments.cool_down,
        adapter=adapter(arguments),
        disable=tuple(arguments.disable),
        target=arguments.target,
        require_gpu=arguments.require_gpu,
    )
    with status("measuring") as progress:
        results = bench(
            arguments.model, lambda session: make_feeds(session, arguments), settings, progress
        )
    name = arguments.model.name
    say(*bench_report.heading(name, results, settings.cool_down_s))
    show(bench_table(results.measured))
    say(*bench_report.verdict(results.measured), *bench_report.disturbances(results.measured))
    if arguments.json is not None:
        text = dumps(bench_report.as_json(name, results), indent=1)
        with whole(arguments.json) as path:
            path.write_text(text + "\n", encoding="utf-8")
    if arguments.chart is not None:
        with whole(arguments.chart) as path:
            bench_report.chart(name, results.measured).save(path)
