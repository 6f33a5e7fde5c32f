"""What several commands take: a model, its inputs, an adapter, a device."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, UsageError

if TYPE_CHECKING:
    from engine.runtime.session import InferenceSession


def input_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, its inputs, and the adapter."""
    parser.add_argument("model", type=Path, help="an .onnx file")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input, strings as a `<U` array; NAME=random (the default for all) draws one, "
        "seeded",
    )
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="a symbolic size of inputs that are drawn; by default that of a file that is given, "
        "else 1 for the first of an input, 64 for others",
    )
    parser.add_argument("--adapter", help="index or part of the name; see `devices`")
    parser.add_argument(
        "--target",
        choices=("baseline", "adapter"),
        help="kernels use what every device guarantees, or all that this one offers (default)",
    )
    parser.add_argument(
        "--disable",
        action="append",
        default=[],
        metavar="NAME",
        help="leave a pass or fusion rule out, to see what it does",
    )
    parser.add_argument(
        "--require-gpu", action="store_true", help="fail if any node would run on the CPU"
    )


def model_arguments(parser: argparse.ArgumentParser, device: str = "auto") -> None:
    """`input_arguments`, and the device that the nodes run on."""
    input_arguments(parser)
    parser.add_argument(
        "--device",
        choices=("auto", "gpu", "cpu"),
        default=device,
        help="where nodes run: auto, where they are predicted to be faster; gpu, on the GPU "
        "wherever they can; cpu, in NumPy (default: %(default)s)",
    )


def count(text: str) -> int:
    """A number of at least 1, as an argument's type."""
    if not text.isdecimal() or text == "0":
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def check_output(option: str, path: Path | None, folder: bool = False) -> None:
    """Looks whether an output can be written, before the work that it is for.

    Args:
        option: what the path was given as.
        path: a file, for which its folder and, for a .png, Pillow must be there; None: no output.
        folder: whether it is a folder instead, which may have to be made.

    Raises: UsageError if it can't.
    """
    if path is None:
        return
    place = path if folder else path.parent
    while folder and not place.exists():
        place = place.parent
    problem = ""
    if not place.exists():
        problem = f"there is no folder {place}"
    elif not place.is_dir():
        problem = f"{place} is not a folder"
    elif path.is_dir() and not folder:
        problem = "that is a folder"
    elif not os.access(path if path.exists() else place, os.W_OK):
        problem = f"{path if path.exists() else f'the folder {place}'} can't be written to"
    elif path.suffix == ".png" and find_spec("PIL") is None:
        problem = "a .png needs Pillow: `pip install Pillow`, or write an .svg"
    if problem:
        raise UsageError(f"{option} {path}: {problem}")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """An output while it is written: what is cut short, by an interrupt or a full disk, goes.

    A file that was there stays if nothing was written to it.
    """
    before = _state(path)
    try:
        yield path
    except BaseException:
        if path.is_file() and _state(path) != before:
            path.unlink()
        raise


def _state(path: Path) -> tuple[int, int] | None:
    """What differs for a file that was written to; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def adapter(arguments: argparse.Namespace) -> int | str | None:
    """The adapter asked for: an index, a part of a name, or None."""
    text = arguments.adapter
    return int(text) if text is not None and text.isdecimal() else text


def make_session(arguments: argparse.Namespace) -> InferenceSession:
    """A session as `model_arguments` ask for."""
    from engine.runtime.session import InferenceSession

    return InferenceSession(
        arguments.model,
        device=arguments.device,
        require_gpu=arguments.require_gpu,
        adapter=adapter(arguments),
        disable=arguments.disable,
        target=arguments.target,
        profile=getattr(arguments, "profile", None),
    )


def make_feeds(
    session: InferenceSession, arguments: argparse.Namespace, values: bool = True
) -> dict[str, Any]:
    """The inputs as `input_arguments` ask for; an error of a later step names what was drawn.

    Without `values` only shapes and types count, so that none has to be given.
    """
    from engine.tools.inputs import guess_dims, make_inputs, parse_pairs, sizes_of

    given = parse_pairs(arguments.input, "--input")
    dims = parse_pairs(arguments.dim, "--dim")
    feeds = make_inputs(session, given, dims, values=values)
    args = session.get_inputs()
    drawn = {n: a for n, a in feeds.items() if given.get(n, "random") == "random"}
    known = sizes_of(args, {n: a for n, a in feeds.items() if n not in drawn})
    sizes = guess_dims(a for a in args if a.name in drawn)
    guessed = {n: size for n, size in sizes.items() if n not in dims and n not in known}
    arguments.hint = partial(_hint, arguments, given, dims, drawn, guessed)
    return feeds


def _hint(
    arguments: argparse.Namespace,
    given: Mapping[str, str],
    dims: Mapping[str, str],
    drawn: Mapping[str, Any],
    guessed: Mapping[str, int],
    message: str,
) -> str:
    """What to give instead of what was drawn and guessed; "" where an error is as with others."""
    from engine.runtime.session import InferenceSession
    from engine.tools.inputs import guess_hint, make_inputs

    for factor, more in ((1, 1), (8, 0)):
        others = {**dims, **{name: str(factor * n + more) for name, n in guessed.items()}}
        try:
            with InferenceSession(
                arguments.model, device="cpu", disable=arguments.disable
            ) as session:
                session.plan(make_inputs(session, given, others, seed=1, values=False))
        except EngineError as error:
            if str(error) == message:
                continue
        return guess_hint(drawn, guessed, message)
    return ""
