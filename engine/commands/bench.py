"""`onnx-wgpu bench`: CPU against GPU latency."""

from __future__ import annotations

import argparse

from engine.commands.arguments import adapter, count, input_arguments, make_feeds

HELP = "CPU against GPU latency"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    input_arguments(parser)
    parser.add_argument("--repeats", type=count, default=10, help="warm calls per device")
    parser.add_argument("--no-cold", action="store_true", help="leave out the cold start")


def execute(arguments: argparse.Namespace) -> None:
    """Measures on each device and prints the table."""
    from engine.tools.bench import bench
    from engine.tools.console import bench_notes, bench_table, console, status

    with status("measuring") as progress:
        results = bench(
            arguments.model,
            lambda session: make_feeds(session, arguments),
            repeats=arguments.repeats,
            cold=None if arguments.no_cold else _same_inputs(arguments),
            adapter=adapter(arguments),
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
