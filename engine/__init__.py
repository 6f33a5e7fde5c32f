"""onnx-wgpu: runs ONNX models as WGSL compute shaders, and NumPy for the rest.

Read the modules in the order of the data: `importer` (file to graph), `ir` and `dims` (graph and
sizes), `passes`, then `compiler`, which calls `splits`, `liveness`, `fusion`, `schedule` and
`planner`, and these the others; `bind` turns a plan and sizes into numbers, and `runtime` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import (
    DeviceError,
    EngineError,
    InputError,
    ModelError,
    PlanError,
    ShaderError,
    ShapeError,
    UnsupportedOpError,
)
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.runtime.session import InferenceSession
    from engine.runtime.values import DeviceValue

__version__ = VERSION

__all__ = [
    "DeviceError",
    "DeviceValue",
    "EngineError",
    "InferenceSession",
    "InputError",
    "ModelError",
    "PlanError",
    "ShaderError",
    "ShapeError",
    "UnsupportedOpError",
]

_LAZY = {
    "InferenceSession": "engine.runtime.session",
    "DeviceValue": "engine.runtime.values",
}


def __getattr__(name: str) -> Any:
    """Loads the runtime (and wgpu) only when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
