"""Random choices that graphs and single nodes are made with, whatever the source of chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Choices(ABC):
    """A source of chance: a subclass says where integers come from."""

    @abstractmethod
    def int(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.int(0, 99) >= 100 - round(100 * p)

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.int(0, len(choices) - 1)]

    def permutation(self, count: int) -> list[int]:
        """The integers below `count` in any order."""
        left = list(range(count))
        return [left.pop(self.int(0, len(left) - 1)) for _ in range(count)]

    def some(self, choices: Sequence[T], least: int = 0) -> list[T]:
        """At least `least` of them, in any order."""
        order = self.permutation(len(choices))
        return [choices[i] for i in order[: self.int(min(least, len(order)), len(order))]]

    def maybe(self, value: Any, p: float = 0.5) -> dict[str, Any]:
        """The attributes `value` with probability p, else none: their defaults hold."""
        return value if self.chance(p) else {}


def factors(choices: Choices, size: int, count: int) -> list[int]:
    """`count` sizes and one more, whose product is `size`."""
    found: list[int] = []
    for _ in range(count):
        found.append(choices.one_of([d for d in range(1, size + 1) if size % d == 0] or [1]))
        size //= found[-1]
    return [*found, size]
