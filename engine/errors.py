"""Every error the engine raises on purpose: each says what, where, and what to do about it."""


class EngineError(Exception):
    """Base of all errors raised by the engine."""


class ModelError(EngineError):
    """The model file is malformed, or breaks the ONNX specification."""


class InputError(EngineError, ValueError):
    """A call's inputs do not fit the model (name, dtype, rank, size), or name unknown outputs."""


class ShapeError(EngineError, ValueError):
    """Shapes of a node's operands do not fit each other, or a size exceeds what can be handled."""


class UnsupportedOpError(EngineError):
    """No implementation of an operator exists on any device, or a required one is missing."""


class ShaderError(EngineError):
    """A WGSL template is inconsistent, or the driver refused the rendered text."""


class PlanError(EngineError):
    """A plan breaks an invariant: a limit, a lifetime, or a stage's contract."""


class DeviceError(EngineError):
    """The GPU is missing, was lost, or ran out of memory; the next call makes a new device."""
