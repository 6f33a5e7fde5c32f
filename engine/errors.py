"""Every error the engine raises on purpose: each says what, where, and what to do about it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class EngineError(Exception):
    """Base of all errors raised by the engine."""


class UsageError(EngineError):
    """What a command was asked for can't be done here, whatever the model and its inputs are."""


class ModelError(EngineError):
    """The model file is malformed, or breaks the ONNX specification."""


class InputError(EngineError, ValueError):
    """A call's inputs do not fit the model (name, dtype, rank, size), or name unknown outputs."""


class ShapeError(EngineError, ValueError):
    """Shapes of a node's operands do not fit each other, or a size exceeds what can be handled."""


class UnsupportedOpError(EngineError):
    """No implementation of an operator exists on any device, or a required one is missing."""


class NotOnGpuError(UnsupportedOpError):
    """Nodes would run on the CPU where everything is required to run on the GPU."""


class ShaderError(EngineError):
    """A WGSL template is inconsistent, or the driver refused the rendered text."""


class PlanError(EngineError):
    """A plan breaks an invariant: a limit, a lifetime, or a stage's contract."""


class DeviceError(EngineError):
    """The GPU is missing, was lost, or ran out of memory; the next call makes a new device."""


@contextmanager
def in_words(where: Callable[[], str]) -> Iterator[None]:
    """Around code that takes a model's operands and attributes for what its operators say.

    What it trips over when they are of another form (a missing axis, an unknown code) is a
    ShapeError that begins with `where()`; the engine's own errors pass.
    """
    try:
        yield
    except EngineError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ShapeError(
            f"{where()}: operands or attributes are not of the operator's form ({what})"
        ) from error
