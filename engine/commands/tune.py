"""`onnx-wgpu tune`: the fastest kernels for a model on an adapter."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.commands.arguments import (
    adapter,
    check_output,
    count,
    input_arguments,
    make_feeds,
)
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.runtime.session import InferenceSession

HELP = "measure the kernels that a model may use, and keep the fastest for this adapter"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    input_arguments(parser)
    parser.add_argument(
        "--budget",
        type=count,
        default=60,
        metavar="SECONDS",
        help="begin no style after these (%(default)s)",
    )
    parser.add_argument(
        "--repeats",
        type=count,
        default=5,
        help="calls of each style (%(default)s)",
    )
    parser.add_argument(
        "--top",
        type=count,
        default=10,
        metavar="N",
        help="rows of the table (%(default)s)",
    )
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
    from engine.tools.console import console, say, show, status
    from engine.tools.inputs import describe
    from engine.tools.tune import tune
    from engine.tools.tune_text import summary, table

    if arguments.name and not arguments.output:
        raise UsageError("--for says what adapters the file of --output is for: give that too")
    if arguments.dry_run and arguments.output:
        raise UsageError("--dry-run keeps nothing: leave --output out")
    inputs: Mapping[str, Any] = {}

    def feeds_of(session: InferenceSession) -> Mapping[str, Any]:
        nonlocal inputs
        inputs = make_feeds(session, arguments)
        return inputs

    arguments.lost = "nothing is kept of what was measured; --budget bounds how long that takes"
    with status("tuning") as progress:
        device = open_device(adapter(arguments), arguments.target)
        path = arguments.output or tunings.user_file(device.info, device.target)
        if not arguments.dry_run:
            _check_kept(path, arguments)
        found = tune(
            arguments.model,
            feeds_of,
            budget_s=arguments.budget,
            repeats=arguments.repeats,
            progress=progress,
            adapter=adapter(arguments),
            target=arguments.target,
            disable=arguments.disable,
        )
    say(f"{arguments.model.name}, {describe(inputs)}", device.info.title)
    if found.choices:
        show(table(found, arguments.top, console().width))
    say(*summary(found, arguments.budget))
    if found.choices and not arguments.dry_run:
        name = arguments.name or device.info.title
        tunings.keep(found.tuning, path, name, device.target.features)
        arguments.lost = ""
        used = "" if arguments.output else ", used from now on"
        say(f"kept in {path}{used}", fold=False)
    elif found.choices:
        say("nothing is kept, as --dry-run asks")


def _check_kept(path: Path, arguments: argparse.Namespace) -> None:
    """Raises: UsageError if what is found can't be kept in a file, which is written whole."""
    if arguments.output:
        check_output("--output", path)
        check_output("--output", path.parent, folder=True)
        return
    try:
        check_output("tuned kernels go to", path.parent, folder=True)
    except UsageError as error:
        raise UsageError(f"{error}; give --output FILE, or --dry-run to keep nothing") from None
