"""Memory: how the C library keeps what arrays leave, so that the next ones find it.

glibc takes memory for large arrays from the system and gives it back when they go. The pages of
the next array are then cleared and mapped again when they are touched, which took a third of the
time of whole models. It keeps up to twice the size of the largest block that it has seen freed, if
that has at most 32 MiB. So one such block, never touched, is taken and freed. Whoever set
glibc's thresholds has decided otherwise, and with another C library this changes nothing.

Source: the manual page of mallopt, M_MMAP_THRESHOLD.
"""

from __future__ import annotations

import functools

import numpy as np

KEPT_NBYTES = (32 << 20) - (64 << 10)
"""A block of which the C library takes note, with what it adds to it."""


@functools.cache
def keep() -> None:
    """Has memory kept from now on, in this process."""
    np.empty(KEPT_NBYTES, np.uint8)
