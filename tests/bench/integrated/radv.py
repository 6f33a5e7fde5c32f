"""Kernels to what the compiler of Mesa's RADV says of them for a Vega 8, without such a GPU."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.shader import Kernel
from tests.bench import vulkan_layer
from tests.bench.integrated.machine_code import Mix, hot_loop
from tests.bench.vulkan_layer import MissingError

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LAYER = "VK_LAYER_ENGINE_compile_only"
FAMILY = "raven"
"""What Mesa calls the first Ryzen APUs: GCN 5, with 8 compute units a Vega 8."""
MAX_WAVES = 10
"""Waves that a SIMD of GCN has room for, however few registers they take."""
LIMIT_S = 120.0


class CompileError(RuntimeError):
    """The kernels could not be compiled."""


@dataclass(frozen=True)
class Compiled:
    """What became of a kernel.

    Attributes:
        spills: registers, vector and scalar, that lie in memory because there were too few.
        waves: how many fit on a SIMD at once.
        loop: its hot loop.
    """

    spills: int
    waves: int
    loop: Mix


class Compiler:
    """Compiles kernels for the baseline as the engine does, each key once.

    Raises: MissingError if RADV, a C compiler or Vulkan's headers are not installed.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="onnx-wgpu-")
        self._compiled: dict[str, Compiled] = {}
        folder = Path(self._folder.name)
        self._file = folder / "compiled.jsonl"
        drivers = ":".join(map(str, _drivers()))
        vulkan_layer.build(HERE / "layer.c", folder)
        self._variables = {
            **os.environ,
            **dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), drivers),
            "VK_LAYER_PATH": str(folder),
            "VK_INSTANCE_LAYERS": LAYER,
            "RADV_FORCE_FAMILY": FAMILY,
            "MESA_SHADER_CACHE_DISABLE": "true",  # what comes from the cache has no statistics
            "ENGINE_COMPILED": str(self._file),
        }

    def compile(self, kernels: Iterable[Kernel]) -> Mapping[str, Compiled]:
        """What became of kernels, by key; those that are new compile in one process.

        Raises: CompileError if that fails.
        """
        wanted = {k.key: k for k in kernels}
        new = [k for key, k in wanted.items() if key not in self._compiled]
        if new:
            for kernel, line in zip(new, self._run(new), strict=True):
                self._compiled[kernel.key] = _read(json.loads(line))
        return {key: self._compiled[key] for key in wanted}

    def _run(self, kernels: list[Kernel]) -> list[str]:
        """A line for each kernel."""
        self._file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.bench.integrated.child"]
        try:
            done = subprocess.run(
                command,
                input=pickle.dumps(kernels),
                env=self._variables,
                cwd=ROOT,
                capture_output=True,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"{len(kernels)} kernels took RADV over {LIMIT_S:g} s") from None
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        if done.returncode or len(lines) != len(kernels):
            words = done.stderr.decode(errors="replace").strip().splitlines()
            raise CompileError(
                f"RADV's process ended with {done.returncode} after {len(lines)} of {len(kernels)} "
                f"kernels: {words[-1] if words else 'it said nothing'}"
            )
        return lines


def _read(said: Mapping[str, Any]) -> Compiled:
    try:
        spills = said["Spilled VGPRs"] + said["Spilled SGPRs"]
        waves = min(said["Subgroups per SIMD"], MAX_WAVES)
    except KeyError as error:
        raise CompileError(f"this RADV has no figure named {error}; it has {[*said]}") from None
    if not said["machine code"]:
        raise CompileError("this RADV shows no machine code: it was built without a disassembler")
    return Compiled(spills, waves, hot_loop(said["machine code"]))


def _drivers() -> list[Path]:
    """RADV's manifests, of several architectures if need be: the loader picks its own."""
    folders = ("/etc", "/usr/local/share", "/usr/share")
    found = [f for top in folders for f in sorted(Path(top).glob("vulkan/icd.d/*radeon*.json"))]
    if not found:
        raise MissingError("Mesa's RADV is not installed (Debian: mesa-vulkan-drivers)")
    return found
