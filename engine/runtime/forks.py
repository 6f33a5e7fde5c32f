"""Forks: a forked process has its parent's devices, but not the threads of their drivers.

Whoever waits for such a device, as it does itself when it is released, waits forever.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

_devices: WeakSet[Any] = WeakSet()
_refusal = ""


def note(device: Any) -> None:
    """Remembers a wgpu device, which a forked process must leave alone."""
    _devices.add(device)


def refusal() -> str:
    """Why this process can't use a GPU, if it was forked by one that did."""
    return _refusal


def _after_fork() -> None:
    global _refusal
    if _devices:
        _refusal = (
            "this process was forked by one that used the GPU, so that it can't: start it by "
            'multiprocessing.get_context("spawn"), or before the GPU is used'
        )
    for device in _devices:
        device._internal = None  # what wgpu would release


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
