"""Which placement is taken: the cheapest one, unless a more certain one is nearly as cheap.

Predictions err. So a part of the graph is given to the GPU only if that is predicted to save a fair
share of what it costs on the CPU: less would not show, and each crossing is a risk. NumPy is the
certain choice: it needs no driver, compiles nothing, and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from engine.placement import CostModel, minimum_cut

MARGIN = 0.1
"""Of the time on the CPU, what the GPU has to save."""
SOFTWARE_MARGIN = 0.25
"""The same where the GPU is a driver on the very same CPU: what it can win is small."""
EMULATED = "; this GPU is software that runs on the same CPU"
"""What a decision against such a GPU adds to its reason."""


def choose(model: CostModel, software: bool = False) -> frozenset[int]:
    """The ids of the nodes on the GPU. `software`: it is emulated on the CPU."""
    margin = SOFTWARE_MARGIN if software else MARGIN
    chosen = minimum_cut(model)
    for island in sorted(_islands(model, chosen), key=lambda i: sum(model.cpu_ns[n] for n in i)):
        without = chosen - island
        saved = model.total_ns(without) - model.total_ns(chosen)
        if saved < margin * sum(model.cpu_ns[n] for n in island):
            chosen = without
    if model.total_ns(chosen) > (1 - margin) * model.total_ns(frozenset()):
        return frozenset()
    return chosen


def _islands(model: CostModel, chosen: Set[int]) -> Iterator[frozenset[int]]:
    """Groups of nodes on the GPU that hand each other values there."""
    near: dict[int, set[int]] = {i: set() for i in chosen}
    for transfer in model.transfers:
        maker = transfer.producer
        if maker is None or maker not in chosen:
            continue
        for reader in transfer.gpu_readers:
            if reader in chosen:
                near[maker].add(reader)
                near[reader].add(maker)
    left = set(chosen)
    while left:
        found, open_ones = set(), [left.pop()]
        while open_ones:
            node = open_ones.pop()
            found.add(node)
            more = near[node] & left
            left -= more
            open_ones += more
        yield frozenset(found)


def decision(model: CostModel, chosen: Set[int], software: bool) -> str:
    """Why the nodes `chosen` are on the GPU, of those that could be, and the others are not."""
    possible = model.possible
    host, device = model.total_ns(frozenset()), model.total_ns(possible)
    if not possible - model.free:
        return "the CPU: no node that computes could run on the GPU"
    times = f"{_ms(device)} with all that can be on the GPU, {_ms(host)} on the CPU alone"
    if not chosen - model.free:
        if device >= host:
            slower = f"the GPU would take {device / max(host, 1):.1f} times as long ({times})"
        else:
            slower = f"the GPU would save too little to be certain ({times})"
        return f"the CPU: {slower}{EMULATED if software else ''}"
    taken = model.total_ns(chosen)
    if possible - model.free <= chosen:
        return f"the GPU, {host / max(taken, 1):.1f} times as fast as the CPU alone ({times})"
    if device < (1 + MARGIN) * taken:
        faster = f"{host / max(taken, 1):.1f} times as fast as the CPU alone"
        return f"the GPU for nearly all, {faster} ({times})"
    return (
        f"a split, {host / max(taken, 1):.1f} times as fast as the CPU alone, and "
        f"{device / max(taken, 1):.1f} times as fast as the GPU wherever it can ({times})"
    )


def _ms(ns: int) -> str:
    ms = ns / 1e6
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
