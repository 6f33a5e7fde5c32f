"""The command line `onnx-wgpu COMMAND`. Thin: the library does it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from engine.commands import COMMANDS
from engine.errors import DeviceError, EngineError, UnsupportedOpError
from engine.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, 1 after an error on stderr, 2 for no command.

    Of what a command guessed `arguments.hint` tells, a function of the error's text.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "execute"):
        parser.print_help()
        return 2
    try:
        return int(arguments.execute(arguments) or 0)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (EngineError, OSError) as error:
        text = f"error: {_words(error)}"
        others = (UnsupportedOpError, DeviceError, OSError)
        if hasattr(arguments, "hint") and not isinstance(error, others):
            text += arguments.hint(str(error))
        print(text, file=sys.stderr)
        return 1


def _words(error: Exception) -> str:
    """What an error says; of files that can't be read or written without the number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onnx-wgpu", description="Runs ONNX models on the GPU through WebGPU shaders."
    )
    parser.add_argument("--version", action="version", version=f"onnx-wgpu {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"engine.commands.{name}")
        added = commands.add_parser(name, help=command.HELP)
        command.configure(added)
        added.set_defaults(execute=command.execute)
    return parser
