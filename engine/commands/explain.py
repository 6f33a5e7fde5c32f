"""`onnx-wgpu explain`: where each node runs, why, and what it costs."""

from __future__ import annotations

import argparse

from engine.commands.arguments import make_feeds, make_session, model_arguments

HELP = "where each node runs, why, and what it costs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    model_arguments(parser)
    parser.add_argument("--wgsl", action="store_true", help="print the generated shaders")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--passes", action="store_true", help="what each pass did, or nearly did")


def execute(arguments: argparse.Namespace) -> None:
    """Plans the model and prints the report."""
    from engine.tools.console import console, status

    with status("planning"):
        session = make_session(arguments)
        report = session.explain(make_feeds(session, arguments))
    out = console()
    if arguments.json:
        print(report.to_json())
        return
    out.print(
        report.to_text(passes=arguments.passes), markup=False, highlight=False, soft_wrap=True
    )
    if arguments.wgsl:
        print(report.wgsl() or "no shaders: every node is on the CPU (see --device gpu)")
