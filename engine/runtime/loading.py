"""Loading: wgpu's backend, with as little parsing of C and as few drivers as will do."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from cffi import CDefError, FFIError

from engine.runtime import header
from engine.runtime.native import ANSWER

log = logging.getLogger(__name__)

BACKENDS = ("Vulkan", "Metal", "DX12")
"""What wgpu's instance looks for adapters in, as it calls them."""

_TYPES = (
    *("WGPUInstanceDescriptor *", "WGPUAdapter[]", "WGPUAdapterInfo *", "WGPUChainedStruct *"),
    *("WGPUNativeLimits *", "WGPULimits *", "char []", "WGPUQueueDescriptor *"),
    *("WGPUDeviceExtras *", "WGPUChainedStruct * ", "WGPUDeviceLostCallbackInfo *"),
    *("WGPUUncapturedErrorCallbackInfo *", "WGPUFeatureName[]", "WGPUDeviceDescriptor *"),
    *("WGPURequestDeviceCallbackInfo *", "WGPUShaderSourceWGSL *", "WGPUShaderModuleDescriptor *"),
    *("WGPUComputeState *", "WGPUComputePipelineDescriptor *", "WGPUBufferDescriptor *"),
    *("WGPUBindGroupEntry *", "WGPUBindGroupEntry[]", "WGPUBindGroupDescriptor *"),
    *("WGPUCommandEncoderDescriptor *", "WGPUComputePassDescriptor *", "uint32_t []"),
    *("WGPUCommandBufferDescriptor *", "WGPUCommandBuffer[]", "WGPUBufferMapCallbackInfo *"),
    *("intptr_t", "uintptr_t", "uint8_t []", "uint8_t *", "WGPUBufferBindingLayout *"),
    *("WGPUBindGroupLayoutEntry *", "WGPUBindGroupLayoutEntry[]", "WGPUBindGroupLayout[]"),
    *("WGPUBindGroupLayoutDescriptor *", "WGPUPipelineLayoutDescriptor *"),
    *("WGPUConstantEntry *", "WGPUConstantEntry[]"),
    "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)",
    "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)",
    "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)",
    ANSWER,
)
"""The texts of C types that wgpu's Python API looks up to make a device and compute with it."""


def parse_types(ffi: Any, texts: Sequence[str] = _TYPES) -> int:
    """Parses C types together, and tells cffi that it knows them; returns how many were new.

    cffi parses the text of a type when it first meets it, and all typedefs of wgpu's header with
    it: 15 milliseconds for each of 45 types. As parameters of one function they are parsed once.
    Where cffi keeps what it parsed elsewhere, or a type is not known, nothing happens: each is
    then parsed when it is met.
    """
    known = getattr(ffi, "_parsed_types", None)
    if not isinstance(known, dict):
        log.info("this cffi keeps parsed types elsewhere; each is parsed when it is met")
        return 0
    new = [t for t in texts if t not in known]
    parameters = ", ".join(map(_parameter, new))
    try:
        found = ffi.typeof(f"void(*)({parameters})").args if new else ()
    except (CDefError, FFIError) as error:
        log.info("wgpu's types are parsed one by one: %s", error)
        return 0
    for text, type_ in zip(new, found, strict=True):
        entry = (type_.item if text.endswith("[]") else type_, text.startswith("void("))
        known.setdefault(text, entry)
    return len(new)


def _parameter(text: str) -> str:
    """A parameter whose type is that of `text`, or a pointer to it where C would change it."""
    if text.endswith("[]"):
        return f"{text[:-2]} (*)[]"
    if text.startswith("void("):
        return f"void (*){text[4:]}"
    return text


def load() -> None:
    """Loads wgpu's backend, with as little parsing of C as possible; does nothing a second time."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # unset, Mesa writes an error
    header.load_backend()
    try:
        from wgpu.backends.wgpu_native import ffi
    except ImportError:
        return
    parse_types(ffi)
    _leave_out_gl()


@functools.cache
def _leave_out_gl() -> None:
    """Makes wgpu's instance without OpenGL, which kernels can't use, and which takes 50 ms to load.

    Does nothing where the process has an instance already.
    """
    try:
        from wgpu.backends.wgpu_native.extras import set_instance_extras

        set_instance_extras(backends=BACKENDS)
    except (ImportError, KeyError, TypeError, RuntimeError) as error:
        log.info("wgpu's instance is as it was: %s", error)
