"""`onnx-wgpu explain`: where each node runs, why, and what it costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engine.commands.arguments import (
    check_output,
    count,
    make_feeds,
    make_session,
    model_arguments,
    whole,
)

if TYPE_CHECKING:
    from engine.explain import Report

HELP = "where each node runs, why, and what it costs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    model_arguments(parser)
    parser.add_argument(
        "--measure",
        type=calls,
        nargs="?",
        const=5,
        metavar="CALLS",
        help="measure each kernel and each node on the CPU too (5 calls)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="plan as for another device: a profile that comes with the engine, or a JSON file",
    )
    parser.add_argument("--passes", action="store_true", help="all that passes did, or nearly did")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/explain.md)")
    parser.add_argument(
        "--wgsl", action="store_true", help="the generated shaders too; in the JSON with --json"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write one page with the graph drawn"
    )


def calls(text: str) -> int:
    """`count`, which says what to do about a model that stands where a number may."""
    try:
        return count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; write MODEL before --measure") from None


def execute(arguments: argparse.Namespace) -> None:
    """Plans the model and prints or writes the report; then checks what `--require-gpu` demands."""
    from engine.partition import check_all_gpu
    from engine.tools.console import say, status

    check_output("--html", arguments.html)
    demanded, arguments.require_gpu = arguments.require_gpu, False
    if demanded and arguments.device == "auto":
        arguments.device = "gpu"
    with status("loading the model") as progress:
        session = make_session(arguments)
        progress("planning")
        feeds = make_feeds(session, arguments, values=arguments.measure is not None)
        measured = None
        if arguments.measure:
            from engine.tools.measure import measure

            measured = measure(session, feeds, arguments.measure, progress)
        report = session.explain(None if measured else feeds, measured)
    if arguments.json:
        print(report.to_json(shaders=arguments.wgsl))
    elif arguments.html is not None:
        say(report.summary(), "")
    else:
        say(report.to_text(passes=arguments.passes))
    if arguments.wgsl and not arguments.json:
        print(report.wgsl() or "no shaders: every node is on the CPU (see --device gpu)")
    if arguments.html is not None:
        _write_page(report, arguments)
    if demanded:
        check_all_gpu(session.plan().partition)


def _write_page(report: Report, arguments: argparse.Namespace) -> None:
    """Writes the page that `--html` asks for; says so where that does not end up in JSON."""
    from engine.tools.console import say, status
    from engine.tools.page import explain_page

    with status("drawing the graph"):
        page = explain_page(report, arguments.model.name)
    with whole(arguments.html) as path:
        path.write_text(page, encoding="utf-8")
    if not arguments.json:
        say(f"wrote {arguments.html}", fold=False)
