"""The section of the page on integrated GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.bench.integrated.fitness import MAX_SPILLS, MIN_BOUND, MIN_WAVES
from tests.bench.peers.tables import Result, table

TITLE = "Fitness for integrated GPUs, read offline from RADV's compiler (raven, a Vega 8)"
ABOUT = (
    "Convolutions and matrix products that a call dispatches in plans for what every device "
    "guarantees; nothing ran. Spills: registers that went to memory. Waves: how many fit on a SIMD "
    "at once, of 10. Bound: the share of the peak of multiply-adds that the hot loop can reach, "
    "which the unit that takes longest for a trip of the loop sets: `valu` (an operation of 64 "
    "lanes a clock), `l1` (64 bytes a clock) or `lds` (128 bytes a clock). Cache misses and "
    "latencies are not in it. Means are weighted by the time that kernels are predicted to take."
)
WHY = """\
What keeps them there:

- A product of one row (inner axis shared) reads a weight of 4 bytes for each multiply-add, so that
  `l1` allows 25 % at most, and memory far less; with four rows, the registers of a lane have room
  for 50 %.
- A depthwise convolution of 3x3 with stride 2 reads 16 bytes for 9 multiply-adds: 56 % at most, and
  44 % with strips that leave four waves room; with stride 2 along one axis these reach 73 %. Of 5x5
  with stride 2, 4x4 pixels reach 68 %; the strips at the goal (4x8: 85 %, 5x7: 89 %) leave room for
  two waves.
- On small maps, a strip or tile that more waves can share is taken before one of a higher bound.
- A convolution of one output channel is computed in strips, in which all lanes are of use. Tiles of
  four channels have bounds of 64 to 81 %, of which a quarter is of use.
- A Relu in front of a convolution keeps NaN, which takes two operations for each element loaded:
  with 16 channels of a pixel in a lane, 84 % at most. 32 of them reach 90 %, with half the waves.
- Other operators in front are computed for each element loaded as well, where a dispatch of their
  own would take longer (Pow and Sqrt: 73 %, Mul: 70 %).
- A Pad in front that repeats elements has a loop of its own at the border, and that one counts; the
  loop inside reaches 97 %."""
HEADS = (
    *("kernels", "spills", "fewest waves", "lowest bound", "mean bound"),
    *("that spill", f"under {MIN_WAVES} waves", f"bound under {MIN_BOUND:.0%}"),
)


def section(results: Sequence[Result]) -> str:
    """By model and by family, what keeps to the goals; then every kernel that does not."""
    models = {r["model"]: r["integrated"] for r in results if r.get("integrated")}
    if not models:
        return ""
    every = _distinct(models.values())
    families = sorted({k["family"] for k in every})
    blocks = [
        f"## {TITLE}",
        ABOUT,
        table(["model", *HEADS], [_row(m, kernels) for m, kernels in models.items()]),
        "Each kernel once:",
        table(
            ["family", *HEADS],
            [
                *(_row(f, [k for k in every if k["family"] == f]) for f in families),
                _row("all", every),
                ["goal", "", "0", str(MIN_WAVES), f"{MIN_BOUND:.0%}", "", "0", "0", "0"],
            ],
        ),
        _under(every, models),
    ]
    return "\n\n".join(b for b in blocks if b)


def _distinct(models: Iterable[Sequence[Result]]) -> list[Result]:
    """Kernels of all models, each once, with the time that it takes in all of them."""
    found: dict[str, Result] = {}
    for kernel in (k for kernels in models for k in kernels):
        before = found.get(kernel["key"], {"predicted_ns": 0})
        time_ns = before["predicted_ns"] + kernel["predicted_ns"]
        found[kernel["key"]] = {**kernel, "predicted_ns": time_ns}
    return list(found.values())


def _row(name: str, kernels: Sequence[Result]) -> list[str]:
    time_ns = sum(k["predicted_ns"] for k in kernels)
    mean = sum(k["bound"] * k["predicted_ns"] for k in kernels) / max(time_ns, 1)
    return [
        name,
        str(len(kernels)),
        str(sum(k["spills"] for k in kernels)),
        str(min(k["waves"] for k in kernels)),
        f"{min(k['bound'] for k in kernels):.0%}",
        f"{mean:.0%}",
        *(str(sum(f(k) for k in kernels)) for f in (_spills, _few_waves, _low)),
    ]


def _spills(kernel: Result) -> bool:
    return bool(kernel["spills"] > MAX_SPILLS)


def _few_waves(kernel: Result) -> bool:
    return bool(kernel["waves"] < MIN_WAVES)


def _low(kernel: Result) -> bool:
    return bool(kernel["bound"] < MIN_BOUND)


def _under(kernels: Sequence[Result], models: dict[str, Sequence[Result]]) -> str:
    """The kernels under a goal, by family, the lowest bound first."""
    wrong = [k for k in kernels if _spills(k) or _few_waves(k) or _low(k)]
    if not wrong:
        return ""
    rows = []
    for kernel in sorted(wrong, key=lambda k: (k["family"], k["bound"])):
        users = [m for m, found in models.items() if kernel["key"] in [k["key"] for k in found]]
        nbytes = f"{kernel['cache_nbytes']}"
        if kernel["workgroup_nbytes"]:
            nbytes += f" + {kernel['workgroup_nbytes']}"
        rows.append(
            [
                f"{kernel['name']} ({', '.join(users)})",
                str(kernel["spills"]),
                str(kernel["waves"]),
                f"{kernel['bound']:.0%}, {kernel['limit']}",
                f"{kernel['fma']:g}",
                f"{kernel['vector'] - kernel['fma']:g}",
                nbytes,
            ]
        )
    heads = ["kernel", "spills", "waves", "bound", "multiply-adds", "other `valu`", "bytes"]
    words = (
        "Under a goal, with what a lane does in a trip of the hot loop (bytes: through the vector "
        "cache + workgroup memory; a lone addition or multiplication is half a multiply-add):"
    )
    return f"{words}\n\n{table(heads, rows)}\n\n{WHY}"
