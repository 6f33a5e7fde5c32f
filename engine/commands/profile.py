"""`onnx-wgpu profile`: where the time of a call goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.commands.arguments import (
    check_output,
    count,
    make_feeds,
    make_session,
    model_arguments,
    whole,
)

HELP = "time per kernel, node, operator and transfer, and what limits it"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    model_arguments(parser)
    parser.add_argument(
        "--repeats",
        type=count,
        default=5,
        help="recorded calls (%(default)s)",
    )
    parser.add_argument(
        "--top",
        type=count,
        default=10,
        metavar="N",
        help="rows of each table (%(default)s)",
    )
    parser.add_argument(
        "--clock",
        choices=("auto", "host"),
        default="auto",
        help="the device's timestamps where there are any (default), or single submits",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all rows")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the calls for ui.perfetto.dev"
    )


def execute(arguments: argparse.Namespace) -> None:
    """Measures the model and prints the tables."""
    from engine.json_text import dumps
    from engine.tools.console import console, say, show, status
    from engine.tools.profile import profile
    from engine.tools.profile_text import header, tables, totals_text
    from engine.tools.trace import chrome_trace

    check_output("--trace", arguments.trace)
    with status("loading the model") as progress:
        session = make_session(arguments)
        feeds = make_feeds(session, arguments)
        found = profile(
            session, feeds, repeats=arguments.repeats, clock=arguments.clock, progress=progress
        )
    if arguments.json:
        print(found.to_json())
    else:
        say(*header(found, arguments.model.name, arguments.device))
        for table in tables(found, arguments.top, console().width):
            show(table)
        say(totals_text(found))
    if arguments.trace:
        trace = chrome_trace(found.calls, arguments.model.name, found.device)
        with whole(arguments.trace) as path:
            path.write_text(dumps(trace), encoding="utf-8")
        if not arguments.json:
            say(f"wrote {arguments.trace}", fold=False)
