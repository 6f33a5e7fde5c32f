"""Targets by name: what every WebGPU device guarantees, or all that one adapter offers."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import DeviceError
from engine.runtime import cache, forks
from engine.target import Target

log = logging.getLogger(__name__)

NAMES = ("baseline", "adapter")
VARIABLE = "ENGINE_TARGET"
"""Environment variable with the name of the default target."""

WGPU_FEATURES = {"subgroups": "subgroup", "shader-f16": "shader-f16"}
"""Features that kernels may use, by WebGPU name, and what wgpu calls them."""

MAPPABLE = "mappable-primary-buffers"
"""wgpu's feature for `Target.mappable`. On adapters with memory of their own it slows kernels."""
SHARING = ("IntegratedGPU", "CPU")
"""Types of adapters that share memory with the CPU."""

_PROBE = """
@group(0) @binding(0) var<storage, read_write> found: array<u32>;
@compute @workgroup_size(64)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    found[id.x] = size * 256u + lane;
}
"""


def resolve(target: Target | str | None, adapter: Any, kind: str) -> Target:
    """A target, or the one with a name; None: that of the environment variable, or "adapter".

    Args:
        adapter: the wgpu adapter. kind: its type as wgpu reports it, such as "CPU".

    Raises: DeviceError for a name that is not known.
    """
    if isinstance(target, Target):
        return target
    name = target or os.environ.get(VARIABLE) or "adapter"
    if name not in NAMES:
        raise DeviceError(f"target {name!r} is not known; there are {', '.join(NAMES)}")
    found = Target.baseline() if name == "baseline" else _offered(adapter, kind)
    mappable = name != "baseline" and kind in SHARING and MAPPABLE in adapter.features
    return replace(found, software=is_software(kind), mappable=mappable)


def is_software(kind: str) -> bool:
    """Whether kernels for an adapter of a type are chosen as suits a CPU."""
    return kind == "CPU"


def _offered(adapter: Any, kind: str) -> Target:
    limits = {k: int(v) for k, v in adapter.limits.items()}
    features = {ours for ours, theirs in WGPU_FEATURES.items() if theirs in adapter.features}
    info: Mapping[str, Any] = adapter.info
    size = 0
    if "subgroups" in features:
        # wgpu spells these keys in more than one way
        least, most = (
            {int(v) for k, v in info.items() if k.endswith(f"group_{end}_size")}
            for end in ("min", "max")
        )
        if least == most and len(least) == 1:
            size = least.pop()
        elif kind == "CPU":
            size = _probed(f"{info['device']} {info['description']}", _Adapter(adapter))
    return Target.of(limits, features, size)


class _Adapter:
    """Hides an adapter from a cache: adapters that are named alike count as equal."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Adapter)

    def __hash__(self) -> int:
        return 0


@functools.cache
def _probed(name: str, holder: _Adapter) -> int:
    """The subgroup size that software adapters always use, or 0 if it is not the same everywhere.

    They run subgroups as the vectors of the CPU, and report a range that says nothing. `name` has
    the width of the vectors and the driver's version.
    """
    import wgpu

    known = f"subgroup-{cache.key(name, wgpu.__version__)}"
    content = cache.load(known)
    if content is not None and len(content) == 1:
        return content[0]
    size = _probe(name, holder.adapter)
    cache.later(lambda: cache.store(known, [bytes([size])]))
    return size


def _probe(name: str, adapter: Any) -> int:
    import wgpu

    try:
        device = adapter.request_device_sync(required_features=["subgroup"])
        forks.note(device)
        module = device.create_shader_module(code=_PROBE)
        pipeline = device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        buffer = device.create_buffer(size=4 * 256, usage=usage)
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": 1024}}],
        )
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(4)
        compute.end()
        device.queue.submit([encoder.finish()])
        found = np.frombuffer(device.queue.read_buffer(buffer), np.uint32)
        device.destroy()
    except (wgpu.GPUError, RuntimeError) as error:
        log.warning("the subgroup size of %s is unknown: %s", name, error)
        return 0
    size = int(found[0]) // 256
    regular = size * 256 + np.arange(256) % max(size, 1)
    return size if 64 % max(size, 1) == 0 and bool((found == regular).all()) else 0
