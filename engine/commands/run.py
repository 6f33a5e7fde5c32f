"""`onnx-wgpu run`: a model once, and what came out."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.commands.arguments import (
    check_output,
    make_feeds,
    make_session,
    model_arguments,
    whole,
)

HELP = "run a model once and describe its outputs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments."""
    model_arguments(parser)
    parser.add_argument(
        "--save",
        metavar="DIR",
        type=Path,
        help="write outputs as DIR/NAME.npy, items of sequences as DIR/NAME.0.npy and so on; the "
        "folder is made if need be",
    )


def execute(arguments: argparse.Namespace) -> None:
    """Runs the model and prints where its nodes ran, inputs and outputs."""
    import numpy as np

    from engine.explain.sizes import count_text
    from engine.tools.console import say, status
    from engine.tools.inputs import describe

    check_output("--save", arguments.save, folder=True)
    with status("loading the model") as progress:
        session = make_session(arguments)
        feeds = make_feeds(session, arguments)
        progress("running")
        results = session.run(None, feeds)
    where = Counter(device for _, device in session.executed(views=False))
    counts = where.most_common()
    nodes = ", ".join(f"{count_text(count, 'node')} on the {d.upper()}" for d, count in counts)
    took = f"first call {session.times.total * 1e3:.2f} ms (later ones: onnx-wgpu bench)"
    on = session.device_name if where["gpu"] else "the CPU (NumPy)"
    ran = nodes or "nothing: results are constant, or inputs"
    ran += " (why: onnx-wgpu explain)" if where["cpu"] and arguments.device != "cpu" else ""
    lines = [
        f"{arguments.model.name} on {on}: {took}",
        f"  ran  {ran}",
        f"  in   {describe(feeds)}",
    ]
    for arg, value in zip(session.get_outputs(), results, strict=True):
        lines.append(f"  out  {arg.name} {_value_text(value)}")
    say(*lines)
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        names = [arg.name for arg in session.get_outputs()]
        for name, array in _files(names, results).items():
            with whole(arguments.save / name) as path:
                np.save(path, array)


def _files(names: Sequence[str], results: Sequence[Any]) -> dict[str, Any]:
    """The arrays of outputs by the names of their files; an optional that is empty has none.

    Strings are a `<U` array, as `--input` takes them.
    """
    files: dict[str, Any] = {}
    for name, value in zip(names, results, strict=True):
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        several = isinstance(value, list)
        for number, item in enumerate(value if several else [value]):
            file = f"{stem}.{number}.npy" if several else f"{stem}.npy"
            while file in files:
                file = f"_{file}"
            if item is not None:
                files[file] = item.astype(str) if item.dtype == object else item
    return files


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
