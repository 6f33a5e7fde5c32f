"""Notes every kernel that the tests render, so that other compilers can be asked about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine import lowering
from engine.shader import Fused, Kernel, render


@dataclass(frozen=True)
class Rendered:
    """A kernel and what `engine.shader.render` made it from."""

    kernel: Kernel
    stem: str
    elements: Mapping[str, str]
    flags: frozenset[str]
    options: Mapping[str, Any]

    @property
    def params(self) -> tuple[tuple[str, str], ...]:
        """The words of Params that generated code and flags add to those of the file."""
        fused: Fused = self.options.get("fused", Fused())
        return fused.params

    def rendered_with(
        self, elements: Mapping[str, str], flags: Iterable[str], params: Mapping[str, str]
    ) -> Kernel:
        """The kernel that other elements and flags make, with more words in Params.

        Raises: ShaderError where the file wants other elements, text or overrides.
        """
        words = tuple({**params, **dict(self.params)}.items())
        fused = replace(self.options.get("fused", Fused()), params=words)
        options = {**self.options, "fused": fused}
        return render(self.stem, self.stem, elements, flags=flags, **options)


class Recorder:
    """The distinct kernels of a run of the tests, by their keys."""

    def __init__(self) -> None:
        self.seen: dict[str, Rendered] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Notes from now on what lowering renders."""

        def noting(
            name: str,
            stem: str,
            elements: Mapping[str, str],
            *,
            flags: Iterable[str] = (),
            **options: Any,
        ) -> Kernel:
            kernel = render(name, stem, elements, flags=flags, **options)
            if kernel.key not in self.seen:
                found = Rendered(kernel, stem, dict(elements), frozenset(flags), options)
                self.seen[kernel.key] = found
            return kernel

        patch.setattr(lowering, "render", noting)

    def of(self, stem: str) -> list[Rendered]:
        """The kernels made from one file that a device without features compiles."""
        return [r for r in self.seen.values() if r.stem == stem and not r.kernel.features]


RECORDER = Recorder()
