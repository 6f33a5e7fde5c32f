"""Memory that arrays leave is found by the next ones."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PAGES = """
import resource
import numpy as np
from cpu_fallback import memory
def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [np.ones(1 << 20, np.uint8) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
memory.keep()
memory.keep()
touched()
print(touched())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about the memory of glibc")
def test_kept_memory_is_used_again() -> None:
    # thresholds that the environment sets would be the ones that count
    free = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    call = [sys.executable, "-c", PAGES]
    done = subprocess.run(call, capture_output=True, text=True, check=True, env=free)
    assert int(done.stdout) < 200  # else each of the 160 arrays touches 256 pages anew
