"""Where the time of a call went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class CallTimes:
    """Seconds of one call by phase: what the host spent, or waited for.

    Attributes:
        phases: "bind", "upload", "encode", "wait" (for the GPU), "download", "host" (CPU nodes).
        total: the whole call.
        dispatches, submits: kernels run, and in how many submits.
        uploaded_nbytes, downloaded_nbytes: bytes that crossed, without padding.
    """

    phases: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    dispatches: int = 0
    submits: int = 0
    uploaded_nbytes: int = 0
    downloaded_nbytes: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of a block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Adds to a phase what was measured elsewhere."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds
