"""Target: limits and features of a GPU device, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from engine.records import dataclass

MAX_WORKGROUPS = 65535
"""Workgroups along one axis of a grid that every device allows; grids are folded to keep to it."""


@dataclass(frozen=True)
class Target:
    """What a kernel may count on. Sizes in bytes, counts otherwise.

    Attributes:
        max_loop_trips: loop iterations of one invocation, nested loops multiplied out; no limit of
            WebGPU, but some software drivers cut loops off past 65,535.
        subgroup_size: invocations of a subgroup; 0 if that is not fixed.
        software: a CPU runs the shaders, in a few threads. Then large tiles are best, and nothing
            is gained by loads that are the same for all of a workgroup, nor by more workgroups than
            threads.
        mappable: buffers that kernels use can be mapped, and lie in memory that the CPU shares.
        features: names of WebGPU features.

    The others are limits of WebGPU.

    Source: WebGPU, 3.6.2 Limits (the default values) and 3.6.1 Features.
    """

    max_storage_buffers_per_shader_stage: int = 8
    max_storage_buffer_binding_size: int = 128 << 20
    max_buffer_size: int = 256 << 20
    max_uniform_buffer_binding_size: int = 64 << 10
    max_compute_workgroup_storage_size: int = 16 << 10
    max_compute_invocations_per_workgroup: int = 256
    max_compute_workgroup_size_x: int = 256
    max_compute_workgroup_size_y: int = 256
    max_compute_workgroup_size_z: int = 64
    max_compute_workgroups_per_dimension: int = MAX_WORKGROUPS
    min_uniform_buffer_offset_alignment: int = 256
    min_storage_buffer_offset_alignment: int = 256
    max_loop_trips: int = 60000
    subgroup_size: int = 0
    software: bool = False
    mappable: bool = False
    features: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def baseline(cls) -> Target:
        """What every WebGPU implementation guarantees: no f16, no subgroups."""
        return cls()

    @classmethod
    def of(
        cls, limits: Mapping[str, int], features: Iterable[str], subgroup_size: int = 0
    ) -> Target:
        """All that an adapter offers.

        Args:
            limits: WebGPU limit names with hyphens, as wgpu reports them, to their values.
            features: WebGPU feature names.
            subgroup_size: invocations per subgroup if the adapter has a fixed size, else 0.
        """
        known: dict[str, Any] = {
            name: int(limits[name.replace("_", "-")])
            for name in cls.limit_names()
            if name.replace("_", "-") in limits
        }
        return cls(subgroup_size=subgroup_size, features=frozenset(features), **known)

    @staticmethod
    def limit_names() -> tuple[str, ...]:
        """The fields that are WebGPU limits."""
        fields = Target.__dataclass_fields__
        return tuple(n for n in fields if n.startswith(("max_", "min_")) and n != "max_loop_trips")
