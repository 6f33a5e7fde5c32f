"""`onnx-wgpu ops`: which operators run where."""

from __future__ import annotations

import argparse

HELP = "which operators run where, and what limits them"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators; all by default")
    parser.add_argument("--markdown", action="store_true", help="print docs/operators.md")


def execute(arguments: argparse.Namespace) -> None:
    """Prints the table of operators."""
    from engine.tools.operators import LEGEND, operator_rows, select, to_markdown

    rows = select(operator_rows(), arguments.names)
    if arguments.markdown:
        print(to_markdown(rows), end="")
        return
    from engine.tools.console import operators_tables, say, show

    for table in operators_tables(rows):
        show(table)
    say(*LEGEND)
