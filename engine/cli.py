"""The command line `onnx-wgpu COMMAND`. Thin: the library does it."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from engine.commands import COMMANDS
from engine.errors import DeviceError, EngineError, NotOnGpuError, UnsupportedOpError, UsageError
from engine.version import VERSION

FOUND, FAILED, INTERRUPTED = 1, 2, 130
"""Exit statuses besides 0: there is what should not be (a difference for `compare`, nodes on the
CPU for `--require-gpu`), a command could not do its work, for the reason on stderr, and Ctrl-C
ended it, which shells call 128 + SIGINT."""
IN_ASCII = {"→": "->", "←": "<-", "″": '"', "…": "...", "✓": "ok"}
"""What is printed where the encoding of a stream lacks a character."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, `FOUND`, `FAILED` or `INTERRUPTED`.

    Of what a command guessed `arguments.hint` tells, a function of the error's text; of what an
    interrupt leaves, `arguments.lost`.
    """
    arguments = argparse.Namespace()
    try:
        _print_anything()
        parser = _parser()
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            _refuse(unknown, getattr(arguments, "parser", parser))
        if not hasattr(arguments, "execute"):
            parser.print_help()
            return FAILED
        return int(arguments.execute(arguments) or 0)
    except KeyboardInterrupt:
        lost = getattr(arguments, "lost", "")
        print(f"interrupted{': ' if lost else ''}{lost}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (EngineError, OSError, MemoryError) as error:
        text = f"error: {_words(error)}"
        others = (UnsupportedOpError, DeviceError, UsageError, OSError, MemoryError)
        if hasattr(arguments, "hint") and not isinstance(error, others):
            text += arguments.hint(str(error))
        print(text, file=sys.stderr)
        return FOUND if isinstance(error, NotOnGpuError) else FAILED


def command() -> NoReturn:
    """Runs the command of this process, which ends with the status of `main`.

    After an interrupt it does so at once: Python would wait for threads, which may compile kernels
    for a while. Only a file of the cache that is being written is written to its end.
    """
    status = main()
    if status != INTERRUPTED:
        sys.exit(status)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    cache = sys.modules.get("engine.runtime.cache")
    if cache is not None:
        cache.finish()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def _print_anything() -> None:
    """Streams write in ASCII what their encoding lacks, as that of a pipe on Windows may."""

    def replaced(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        lacking = error.object[error.start : error.end]
        known = (IN_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking)
        return "".join(known), error.end

    codecs.register_error("onnx-wgpu", replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="onnx-wgpu")


def _refuse(unknown: Sequence[str], parser: argparse.ArgumentParser) -> NoReturn:
    """Ends with the usage of a command, and what words that it does not know may have meant."""
    options = [text for action in parser._actions for text in action.option_strings]
    names = (word.partition("=")[0] for word in unknown)
    meant = [get_close_matches(n, options, 1) for n in names if n.startswith("-")]
    asked = ", ".join(dict.fromkeys(near for found in meant for near in found))
    hint = f"; did you mean {asked}?" if asked else ""
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _words(error: Exception) -> str:
    """What an error says; of files that can't be read or written without the number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory: {error}" if str(error) else "there is not enough memory"
        )
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onnx-wgpu",
        description="Runs ONNX models on the GPU through WebGPU shaders.",
        epilog="Exit status: 0; 1 if `compare` finds a difference, nodes would run on the CPU "
        "that --require-gpu wants on the GPU, or `devices` finds none; 2 if a command could "
        "not do its work; 130 if it was interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"onnx-wgpu {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"engine.commands.{name}")
        added = commands.add_parser(name, help=command.HELP)
        command.configure(added)
        added.set_defaults(execute=command.execute, parser=added)
    return parser
