"""Measures a DeviceProfile on a device and on NumPy, once per adapter, and keeps it on disk.

Every figure is the fastest of several short samples: what else runs on the machine only adds time.
The whole takes about a second, plus the driver's compilation of two small kernels.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import wgpu

from engine.costs import DeviceProfile
from engine.errors import EngineError
from engine.progress import tell

log = logging.getLogger(__name__)

VERSION = 1
"""Raised when the meaning of a figure changes, so that older files are not used."""

KEPT_FILES = 32

_SHARE_S = 0.05
_MIN_SAMPLES = 3
_SMALL = 4 << 10
_LARGE = 4 << 20
_WORD = 16
_MATRIX = 256

_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
_READBACK = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST

_SCALE = """
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < arrayLength(&y)) {
    y[id.x] = x[id.x] * 0.5 + vec4<f32>(1.0);
  }
}
"""

# A matrix product, 8 rows and 4 columns an invocation; the rows are the same for a workgroup.
_PRODUCT_ROW = """
    let a{0} = x[(row + {0}u) * size4 + k];
    c{0} += a{0}.x * b0 + a{0}.y * b1 + a{0}.z * b2 + a{0}.w * b3;"""
_PRODUCT = """
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
  let size4 = MATRIXu / 4u;
  let row = group.x * 8u;
  let column = id.x;
  if (column >= size4) { return; }
  DECLARE
  for (var k = 0u; k < size4; k++) {
    let b0 = x[(4u * k) * size4 + column];
    let b1 = x[(4u * k + 1u) * size4 + column];
    let b2 = x[(4u * k + 2u) * size4 + column];
    let b3 = x[(4u * k + 3u) * size4 + column];ROWS
  }
  STORE
}
"""


def device_profile(
    device: Any, title: str, *, folder: Path | None = None, refresh: bool = False
) -> DeviceProfile:
    """The profile of a device: from the cache, or measured (about a second) and put there.

    Args:
        device: a wgpu `GPUDevice` with at least WebGPU's default limits; nothing else may use it
            meanwhile.
        title: adapter, driver and back end: what the figures depend on.
        folder: where profiles are kept; the platform's cache folder by default.
        refresh: measure even if there is a file.

    A damaged file is measured again and replaced; a folder that cannot be written is no error.
    """
    folder = folder or Path(platformdirs.user_cache_dir("onnx-wgpu")) / "profiles"
    path = folder / _file_name(title)
    if not refresh:
        try:
            return DeviceProfile.load(path)
        except FileNotFoundError:
            log.info("measuring the speed of %s", title)
        except (EngineError, OSError) as error:
            log.warning("ignoring the device profile in %s: %s", path, error)
    tell(f"calibrating, once: measuring the speed of {title}")
    profile = measure(device, title)
    try:
        _store(path, profile)
    except OSError as error:
        log.warning("the device profile could not be kept in %s: %s", path, error)
    return profile


def measure(device: Any, title: str) -> DeviceProfile:
    """Measures every figure of the profile, GPU and NumPy, in about a second."""
    bench = _Bench(device)
    started = time.perf_counter()
    try:
        profile = DeviceProfile(name=title, **bench.gpu(), **_cpu())
    finally:
        bench.close()
    log.info("measured %s in %.2f s", title, time.perf_counter() - started)
    return profile


def _file_name(title: str) -> str:
    """Readable, and different for different adapters, drivers and versions of the figures."""
    words = "".join(c if c.isalnum() else "-" for c in title.lower())
    key = json.dumps([VERSION, title, np.__version__, wgpu.__version__])
    return f"{words[:48].strip('-')}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def _store(path: Path, profile: DeviceProfile) -> None:
    """Writes the file whole or not at all, and drops the oldest of too many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(profile.to_json())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    files = sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in files[KEPT_FILES:]:
        old.unlink(missing_ok=True)


def _fastest_ns(action: Callable[[], object], share_s: float = _SHARE_S) -> int:
    """The shortest time of `action` in nanoseconds, of as many runs as fit in `share_s`."""
    action()
    best = 1 << 62
    started = time.perf_counter_ns()
    samples = 0
    while samples < _MIN_SAMPLES or time.perf_counter_ns() - started < share_s * 1e9:
        before = time.perf_counter_ns()
        action()
        best = min(best, time.perf_counter_ns() - before)
        samples += 1
    return max(best, 1)


def _less(whole_ns: int, part_ns: int) -> int:
    """`whole_ns` less what it has in common with `part_ns`; all of it where noise hides that."""
    rest = whole_ns - part_ns
    return rest if rest > whole_ns // 20 else whole_ns


def _rate(amount: int, ns: int) -> int:
    """`amount` per `ns` as a whole number per second, at least 1."""
    return max(amount * 1_000_000_000 // max(ns, 1), 1)


def _cpu() -> dict[str, int]:
    """The figures of NumPy, through the operators as the engine runs them."""
    from cpu_fallback import registry

    def time_ns(op_type: str, shape: tuple[int, ...]) -> int:
        x = np.ones(shape, np.float32)
        return _fastest_ns(lambda: registry.run(op_type, "", 14, {}, (x, x), 1))

    op_ns = time_ns("Add", (16,))
    # BLAS runs the smaller product on one thread: where other work keeps a core busy, threads that
    # wait for each other are a hundred times slower.
    product_rates = [
        _rate(2 * size**3, _less(time_ns("MatMul", (size, size)), op_ns)) for size in (_MATRIX, 96)
    ]
    return {
        "cpu_op_ns": op_ns,
        "cpu_bytes_per_s": _rate(3 * _LARGE, _less(time_ns("Add", (_LARGE // 4,)), op_ns)),
        "cpu_flops_per_s": max(product_rates),
    }


class _Bench:
    """The buffers and kernels of one measurement."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.buffers = [device.create_buffer(size=_LARGE, usage=_USAGE) for _ in range(2)]
        self.tiny = [device.create_buffer(size=_SMALL, usage=_USAGE) for _ in range(2)]
        self.staging = device.create_buffer(size=_LARGE, usage=_READBACK)
        self._groups: dict[tuple[int, int], Any] = {}
        self.scale = self._pipeline(_SCALE)
        self.product = self._pipeline(_product_text())

    def close(self) -> None:
        for buffer in (*self.buffers, *self.tiny, self.staging):
            buffer.destroy()

    def gpu(self) -> dict[str, int]:
        """The figures of the device and of the way to it."""
        launch_ns = self._dispatch_ns(self.scale, self.tiny, _SMALL // 16 // 64, 32)
        scale_ns = self._dispatch_ns(self.scale, self.buffers, _LARGE // 16 // 64, 8)
        product_ns = self._dispatch_ns(self.product, self.buffers, _MATRIX // 8, 8)
        return {
            "launch_ns": launch_ns,
            "submit_ns": self._submit_ns(),
            "gpu_bytes_per_s": _rate(2 * _LARGE, _less(scale_ns, launch_ns)),
            "gpu_flops_per_s": _rate(2 * _MATRIX**3, _less(product_ns, launch_ns)),
            **self._transfers(),
        }

    def _dispatch_ns(self, pipeline: Any, buffers: list[Any], groups: int, more: int) -> int:
        """Time of one more dispatch in a pass."""
        one_ns = _fastest_ns(lambda: self._run(pipeline, buffers, 1, groups))
        many_ns = _fastest_ns(lambda: self._run(pipeline, buffers, 1 + more, groups))
        return _less(many_ns, one_ns) // more

    def _submit_ns(self) -> int:
        """Encoding and submitting alone; every sample is waited for, outside the time."""
        best = 1 << 62
        for _ in range(30):
            before = time.perf_counter_ns()
            self._submit(self.scale, self.tiny, 1, 1, _WORD)
            best = min(best, time.perf_counter_ns() - before)
            self._collect(_WORD)
        return best

    def _transfers(self) -> dict[str, int]:
        small, large = np.ones(_SMALL // 4, np.float32), np.ones(_LARGE // 4, np.float32)
        wait_ns = _fastest_ns(lambda: self._run(self.scale, self.tiny, 0, 0))
        up_small = _fastest_ns(lambda: self._upload(small))
        up_large = _fastest_ns(lambda: self._upload(large))
        down_small = _fastest_ns(lambda: self._run(self.scale, self.buffers, 0, 0, _SMALL))
        down_large = _fastest_ns(lambda: self._run(self.scale, self.buffers, 0, 0, _LARGE))
        return {
            "upload_latency_ns": max(up_small - wait_ns, 0),
            "upload_bytes_per_s": _rate(_LARGE - _SMALL, _less(up_large, up_small)),
            "download_latency_ns": down_small,
            "download_bytes_per_s": _rate(_LARGE - _SMALL, _less(down_large, down_small)),
        }

    def _pipeline(self, text: str) -> Any:
        module = self.device.create_shader_module(code=text)
        compute = {"module": module, "entry_point": "main"}
        return self.device.create_compute_pipeline(layout="auto", compute=compute)

    def _upload(self, data: np.ndarray[Any, Any]) -> None:
        self.device.queue.write_buffer(self.buffers[0], 0, data)
        self._run(self.scale, self.tiny, 0, 0)

    def _run(
        self, pipeline: Any, buffers: list[Any], count: int, groups: int, nbytes: int = _WORD
    ) -> np.ndarray[Any, Any]:
        """One submit of `count` dispatches in one pass; what comes back of the last buffer."""
        self._submit(pipeline, buffers, count, groups, nbytes)
        return self._collect(nbytes)

    def _submit(
        self, pipeline: Any, buffers: list[Any], count: int, groups: int, nbytes: int
    ) -> None:
        encoder = self.device.create_command_encoder()
        if count:
            group = self._group(pipeline, buffers)
            steps = encoder.begin_compute_pass()
            for _ in range(count):
                steps.set_pipeline(pipeline)
                steps.set_bind_group(0, group)
                steps.dispatch_workgroups(groups)
            steps.end()
        encoder.copy_buffer_to_buffer(buffers[1], 0, self.staging, 0, nbytes)
        self.device.queue.submit([encoder.finish()])

    def _collect(self, nbytes: int) -> np.ndarray[Any, Any]:
        self.staging.map_sync("READ", 0, nbytes)
        try:
            view = self.staging.read_mapped(0, nbytes, copy=False)
            return np.frombuffer(view, np.float32).copy()
        finally:
            self.staging.unmap()

    def _group(self, pipeline: Any, buffers: list[Any]) -> Any:
        key = (id(pipeline), id(buffers))
        if key not in self._groups:
            self._groups[key] = self.device.create_bind_group(
                layout=pipeline.get_bind_group_layout(0),
                entries=[{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(buffers)],
            )
        return self._groups[key]


def _product_text() -> str:
    rows = range(8)
    return (
        _PRODUCT.replace("MATRIX", str(_MATRIX))
        .replace("DECLARE", "".join(f"var c{i} = vec4<f32>(0.0); " for i in rows))
        .replace("ROWS", "".join(_PRODUCT_ROW.format(i) for i in rows))
        .replace("STORE", "".join(f"y[(row + {i}u) * size4 + column] = c{i}; " for i in rows))
    )
