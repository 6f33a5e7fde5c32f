"""Where the time of a call went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(slots=True)
class _Phase:
    """Adds the time of its block to a phase of a call."""

    times: CallTimes
    name: str
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.times.add(self.name, time.perf_counter() - self.start)


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

    def phase(self, name: str) -> _Phase:
        """A context that adds the time of its block to a phase."""
        return _Phase(self, name)

    def add(self, name: str, seconds: float) -> None:
        """Adds to a phase what was measured elsewhere."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds
