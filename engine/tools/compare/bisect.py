"""Bisect: which pass or fusion rule makes a result wrong, by leaving some out."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def guilty(names: Sequence[str], right_without: Callable[[frozenset[str]], bool]) -> str | None:
    """The one of `names`, applied in this order, from which on the result is wrong.

    Args:
        names: passes or rules.
        right_without: whether the result is right if some of them are left out.

    Returns: None if the result is right with all of them, or wrong without any.
    """
    if right_without(frozenset()) or not right_without(frozenset(names)):
        return None
    right, wrong = 0, len(names)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if right_without(frozenset(names[middle:])):
            right = middle
        else:
            wrong = middle
    return names[wrong - 1]
