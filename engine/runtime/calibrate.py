"""Device profiles: measured once per adapter and once per CPU, and kept on disk.

Every figure is the fastest of several short samples: what else runs on the machine only adds time.
Both halves take less than two seconds in all, the driver's compilation of a few kernels included.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import platformdirs
import wgpu

from engine.errors import EngineError
from engine.progress import tell
from engine.rates import CpuRates, DeviceProfile, GpuRates, load_rates, rates_to_json
from engine.runtime import adapter_files

if TYPE_CHECKING:
    from engine.runtime.device import Device

log = logging.getLogger(__name__)

VERSION = 3
"""Raised when the meaning of a figure changes, so that older files are not used."""

KEPT_FILES = 32

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENBLAS_CORETYPE",
    "LP_NUM_THREADS",
)
"""Environment variables that change how fast NumPy or a software driver is."""

_Rates = TypeVar("_Rates", GpuRates, CpuRates)


def measure_cpu() -> CpuRates:
    """Every figure of NumPy; see `calibrate_cpu`, which later starts do without."""
    from engine.runtime import calibrate_cpu

    return calibrate_cpu.measure_cpu()


def measure_gpu(device: Device, profile: DeviceProfile) -> GpuRates:
    """Every figure of a GPU; see `calibrate_gpu`, which later starts do without."""
    from engine.runtime import calibrate_gpu

    return calibrate_gpu.measure_gpu(device, profile)


def device_profile(
    device: Device, *, folder: Path | None = None, refresh: bool = False
) -> DeviceProfile:
    """The profile of a device: from the cache, or measured (a second or two) and put there.

    Args:
        device: nothing else may use it meanwhile.
        folder: where profiles are kept; the platform's cache folder by default.
        refresh: measure even if there is a file.

    A damaged file is measured again and replaced; a folder that cannot be written is no error.
    """
    folder = folder or _folder()
    cpu_name, gpu_name = _names(device)
    cpu = _kept(CpuRates, folder, "cpu", cpu_name, refresh, measure_cpu)
    title = device.info.title
    beside = DeviceProfile(title, DeviceProfile.builtin().gpu, cpu)
    gpu = _kept(GpuRates, folder, "gpu", gpu_name, refresh, lambda: measure_gpu(device, beside))
    return DeviceProfile(f"{title}, beside {cpu_name}", gpu, cpu)


def known_profile(device: Device, *, folder: Path | None = None) -> DeviceProfile:
    """The profile of a device if it was measured already, else a typical one, which says so.

    Where everything that can runs on the GPU, nothing is decided by it, and the measurement would
    only delay: it takes longer than the start of most models.
    """
    folder = folder or _folder()
    cpu_name, gpu_name = _names(device)
    try:
        cpu = load_rates(CpuRates, folder / _file_name("cpu", cpu_name))
        gpu = load_rates(GpuRates, folder / _file_name("gpu", gpu_name))
    except (EngineError, OSError):
        typical = DeviceProfile.builtin("lavapipe" if device.info.is_software else "integrated")
        return replace(typical, name=f"{device.info.title}, not measured; as of {typical.name}")
    return DeviceProfile(f"{device.info.title}, beside {cpu_name}", gpu, cpu)


def _names(device: Device) -> tuple[str, str]:
    """What the figures of NumPy and of a GPU depend on."""
    cpu_name = cpu_title()
    features = ", ".join(sorted(device.target.features))
    return cpu_name, f"{device.info.title}; {features or 'baseline'}; beside {cpu_name}"


def cpu_profile(*, folder: Path | None = None) -> DeviceProfile:
    """The profile of NumPy alone, with a typical GPU beside it: measured if that was done already.

    Where nothing runs but NumPy, nothing is decided by it, and the measurement would only delay.
    """
    typical, name = DeviceProfile.builtin(), cpu_title()
    try:
        cpu = load_rates(CpuRates, (folder or _folder()) / _file_name("cpu", name))
    except (EngineError, OSError):
        return typical
    return DeviceProfile(name, typical.gpu, cpu)


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("onnx-wgpu")) / "profiles"


def cpu_title() -> str:
    """What the speed of NumPy depends on: processor, NumPy, its BLAS, threads."""
    config = np.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {}) if config else {}
    library = f"{blas.get('name', 'no BLAS')} {blas.get('version', '')}".strip()
    threads = [f"{v}={os.environ[v]}" for v in _THREAD_VARIABLES if os.environ.get(v)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = (_processor(), f"{cores} cores", f"NumPy {np.__version__}", library, *threads)
    return ", ".join(parts)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _kept(
    kind: type[_Rates],
    folder: Path,
    part: str,
    title: str,
    refresh: bool,
    measure: Callable[[], _Rates],
) -> _Rates:
    """Figures from their file, or measured and put there."""
    path = folder / _file_name(part, title)
    if not refresh:
        try:
            return load_rates(kind, path)
        except FileNotFoundError:
            log.info("measuring the speed of %s", title)
        except (EngineError, OSError) as error:
            log.warning("ignoring the device profile in %s: %s", path, error)
    tell(f"calibrating, once: measuring the speed of {title}")
    started = time.perf_counter()
    rates = measure()
    log.info("measured %s in %.2f s", title, time.perf_counter() - started)
    try:
        _store(path, rates_to_json(title, rates))
    except OSError as error:
        log.warning("the device profile could not be kept in %s: %s", path, error)
    return rates


def _file_name(part: str, title: str) -> str:
    """Another one for other adapters, drivers, libraries and versions of the figures."""
    return adapter_files.file_name(f"{part} {title}", VERSION, np.__version__, wgpu.__version__)


def _store(path: Path, text: str) -> None:
    """Writes the file, and drops the oldest of too many."""
    adapter_files.write(path, text)
    files = sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in files[KEPT_FILES:]:
        old.unlink(missing_ok=True)
