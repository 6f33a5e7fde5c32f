"""`onnx-wgpu compare`: what the GPU computes otherwise than it should, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine.commands.arguments import (
    adapter,
    check_output,
    count,
    make_feeds,
    make_session,
    model_arguments,
)
from engine.errors import UsageError

HELP = "the GPU against the CPU, node by node: what differs first, and why"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    model_arguments(parser, device="gpu")
    parser.add_argument(
        "--against",
        choices=("cpu", "onnxruntime", "reference"),
        default="cpu",
        help="what is right: NumPy without passes (default), ONNX Runtime, or onnx.reference",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="inputs: a test_data_set of ONNX")
    parser.add_argument(
        "--tolerance",
        type=tolerance,
        metavar="E",
        help="largest error over the largest magnitude; by default by type and operator",
    )
    parser.add_argument(
        "--find", choices=("nan",), help="look for the first NaN or infinity instead"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where the node that is wrong is written, with its inputs (default: MODEL.wrong)",
    )
    parser.add_argument(
        "--memory",
        type=count,
        default=256,
        metavar="MIB",
        help="values held at a time (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def tolerance(text: str) -> float:
    """An error of 0 or more, as an argument's type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def execute(arguments: argparse.Namespace) -> int:
    """Compares and prints what was found; the status is 1 if anything was.

    Raises: UsageError if nothing ran on the GPU, unless that was asked for.
    """
    from engine.tools.compare import compare, find_nan
    from engine.tools.compare.report import COPIED, NOTHING_RAN, onset_text, to_json, to_text
    from engine.tools.compare.runs import Setup, shapes_text
    from engine.tools.console import say, status

    check_output("--output", arguments.output, folder=True)
    setup = Setup(
        arguments.model,
        arguments.device,
        arguments.require_gpu,
        adapter(arguments),
        arguments.target,
        frozenset(arguments.disable),
    )
    folder = arguments.output or arguments.model.with_suffix(".wrong")
    with status("loading the model") as progress:
        feeds = _feeds(arguments)
        if arguments.find:
            onset = find_nan(setup, feeds, folder=folder, progress=progress)
            text, found, wrong = onset_text(onset), to_json(onset), not onset.ok
            empty = False
        else:
            comparison = compare(
                setup,
                feeds,
                against=arguments.against,
                tolerance=arguments.tolerance,
                folder=folder,
                budget=arguments.memory << 20,
                progress=progress,
            )
            text = to_text(comparison, arguments.model.name, shapes_text(feeds))
            found, wrong = to_json(comparison), not comparison.ok
            empty = not comparison.gpu_nodes and arguments.device != "cpu"
    if arguments.json:
        print(found)
    else:
        for line in text.splitlines():
            say(line, fold=not line.startswith(COPIED))
    if empty and not wrong:
        raise UsageError(NOTHING_RAN)
    return int(wrong)


def _feeds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Inputs from a test folder, or as the other commands make them."""
    from engine.tools.compare.extract import load_inputs

    with make_session(arguments) as session:
        if arguments.data and (arguments.input or arguments.dim):
            raise UsageError("--data gives every input: leave --input and --dim out")
        if arguments.data:
            return load_inputs(arguments.data, session)
        return dict(make_feeds(session, arguments))
