"""Builds Vulkan layers: C files that include `vulkan_layer.h`, each with its manifest beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class MissingError(RuntimeError):
    """Something is not installed that is needed."""


def build(source: Path, folder: Path) -> None:
    """Writes `liblayer.so` and `layer.json`, its manifest, into a folder for VK_LAYER_PATH.

    Raises: MissingError if a C compiler or Vulkan's headers are not installed.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MissingError("no C compiler is installed (Debian: gcc)")
    files = [str(folder / "liblayer.so"), str(source)]
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        first = next((x for x in done.stderr.splitlines() if "error" in x), "it does not say why")
        raise MissingError(
            f"the Vulkan layer does not compile (Debian: libvulkan-dev, libc6-dev): {first.strip()}"
        )
    shutil.copy(source.with_suffix(".json"), folder / "layer.json")
