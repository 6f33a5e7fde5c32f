"""`onnx-wgpu tune`: the fastest kernels for a model on an adapter."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.commands.arguments import adapter, count, input_arguments, make_feeds

HELP = "measure the kernels that a model may use, and keep the fastest for this adapter"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    input_arguments(parser)
    parser.add_argument(
        "--budget", type=count, default=60, metavar="SECONDS", help="begin no style after these"
    )
    parser.add_argument("--repeats", type=count, default=5, help="calls of each style")
    parser.add_argument("--top", type=count, default=10, metavar="N", help="rows of the table")
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="add to this file, not to the one that sessions read",
    )
    parser.add_argument(
        "--for",
        dest="name",
        metavar="PREFIX",
        help="how the names of adapters begin that --output is for",
    )


def execute(arguments: argparse.Namespace) -> None:
    """Measures, keeps what is faster, and prints the table."""
    from engine.runtime import tunings
    from engine.runtime.device import open_device
    from engine.tools.console import console, say, status
    from engine.tools.tune import tune
    from engine.tools.tune_text import summary, table

    with status("tuning") as progress:
        device = open_device(adapter(arguments), arguments.target)
        found = tune(
            arguments.model,
            lambda session: make_feeds(session, arguments),
            budget_s=arguments.budget,
            repeats=arguments.repeats,
            progress=progress,
            adapter=adapter(arguments),
            target=arguments.target,
            disable=arguments.disable,
        )
    lines = summary(found, arguments.budget)
    if not arguments.dry_run:
        path = arguments.output or tunings.user_file(device.info, device.target)
        name = arguments.name if arguments.output and arguments.name else device.info.title
        tunings.keep(found.tuning, path, name, device.target.features)
        used = "" if arguments.output else ", used from now on"
        lines.append(f"kept in {path}{used}")
    out = console()
    out.print(table(found, arguments.top, out.width))
    say(*lines, fold=False)
