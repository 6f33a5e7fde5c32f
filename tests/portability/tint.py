"""Tint, the WGSL compiler of Chrome: npm's `webgpu` under Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.shader import Kernel

FOLDER = Path(__file__).parent


def need_tint() -> None:
    """Skips the test where Node or the package is missing; fails it if ENGINE_REQUIRE_TINT=1."""
    if shutil.which("node") is None:
        reason = "no Node.js (Debian: nodejs, npm)"
    elif not (FOLDER / "node_modules" / "webgpu").is_dir():
        reason = "no npm package `webgpu` (npm --prefix tests/portability ci)"
    else:
        return
    if os.environ.get("ENGINE_REQUIRE_TINT") == "1":
        pytest.fail(f"{reason}, and ENGINE_REQUIRE_TINT=1 demands it", pytrace=False)
    pytest.skip(reason)


def compile_all(kernels: Sequence[Kernel]) -> list[list[str]]:
    """Compiles kernels to pipelines of a device with WebGPU's default limits, in one process.

    Returns: the errors of each kernel, none where it compiles.

    Raises: subprocess.CalledProcessError if Node ends with an error.
    """
    asked = [
        {
            "wgsl": kernel.wgsl,
            "overrides": dict(kernel.overrides),
            "features": sorted(kernel.features),
            "bindings": [
                *("storage" if t.writable else "read-only-storage" for t in kernel.tensors),
                *["uniform"] * (bool(kernel.params) + kernel.repeats),
            ],
        }
        for kernel in kernels
    ]
    done = subprocess.run(
        ["node", str(FOLDER / "check.mjs")],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    errors: list[list[str]] = json.loads(done.stdout)
    return errors


def report(kernels: Sequence[Kernel], errors: Sequence[Sequence[str]]) -> str:
    """The refused kernels with their errors; the text of the first, numbered."""
    bad = [(k, e) for k, e in zip(kernels, errors, strict=True) if e]
    lines = [f"{kernel.name}: {'; '.join(found[:3])}" for kernel, found in bad]
    if bad:
        text = bad[0][0].wgsl.splitlines()
        lines += [f"{i:4} {line}" for i, line in enumerate(text, 1)]
    return "\n".join(lines)
