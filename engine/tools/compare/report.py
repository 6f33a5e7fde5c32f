"""Report: a comparison in lines for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.json_text import dumps
from engine.tools.compare import Comparison, Onset
from engine.tools.compare.finding import KINDS, Finding
from engine.tools.compare.runs import NAMES
from engine.tools.compare.tolerance import Difference

MAX_SHOWN = 6
COPIED = ("  written", "  rerun")
"""How lines begin that people copy from."""


def difference_text(d: Difference) -> str:
    """One value: how far it is off, and where."""
    head = f"{d.name} {d.dtype}{list(d.shape)}"
    if d.problem and not d.size:
        return f"{head}: {d.problem}"
    if not d.max_abs:
        return f"{head}: {d.problem}" if d.problem else f"{head}: equal"
    parts = [f"max abs {d.max_abs:.3g}", f"max rel {d.max_rel:.3g}"]
    parts += [f"{d.max_ulp} ulp"] if d.max_ulp else []
    parts.append(f"at {list(d.where)}: {d.got} instead of {d.want}")
    if any(d.nan) or any(d.inf):
        parts.append(f"NaN {d.nan[0]} against {d.nan[1]}, Inf {d.inf[0]} against {d.inf[1]}")
    verdict = d.problem or f"within {d.allowed:.3g}"
    return f"{head}: {verdict}; {', '.join(parts)}"


def finding_lines(finding: Finding) -> list[str]:
    """What is wrong, where, by how much, and how to see it again."""
    blame = f" {finding.blame}" if finding.blame else ""
    lines, beside = [f"to blame: {KINDS[finding.kind]}{blame}"], "differs"
    if finding.kind == "nan":
        lines, beside = [f"{finding.blame} begins here"], "NumPy"
    if finding.node:
        lines.append(f"  node     {finding.node}")
    if finding.origin:
        names = ", ".join(finding.origin[:MAX_SHOWN])
        more = len(finding.origin) - MAX_SHOWN
        lines.append(f"  model    {names}" + (f", {more} more" if more > 0 else ""))
    lines += [f"  {beside:7}  {difference_text(d)}" for d in finding.differences[:MAX_SHOWN]]
    lines += [f"  note     {note}" for note in finding.notes]
    if finding.model is not None:
        alone = "shows it alone" if finding.alone else "does not show it alone"
        lines += [f"  written  {finding.model} ({alone})", f"  rerun    {finding.command}"]
    return lines


def to_text(found: Comparison, model: str, inputs: str) -> str:
    """The whole comparison."""
    lines = [f"{model}, {inputs}", f"{found.device} against {NAMES[found.against]}"]
    for d in found.outputs[:MAX_SHOWN]:
        lines.append(f"  output   {difference_text(d)}")
    if len(found.outputs) > MAX_SHOWN:
        lines.append(f"  ... and {len(found.outputs) - MAX_SHOWN} more outputs, none of them worse")
    if found.gpu_nodes:
        lines.append(_kernels_line(found))
    if found.finding is None:
        agree = "the outputs of NumPy do not differ beyond tolerance; no kernel was compared"
        lines.append("no difference beyond tolerance" if found.gpu_nodes else agree)
    else:
        lines += finding_lines(found.finding)
    return "\n".join(lines)


NOTHING_RAN = "nothing ran on the GPU (why: onnx-wgpu explain), so no kernel was compared"


def onset_text(found: Onset) -> str:
    """What holds NaN or infinity from the start, what follows from it, and what makes some."""
    lines = [held.text for held in found.given[:MAX_SHOWN]]
    if len(found.given) > MAX_SHOWN:
        lines.append(f"... and {len(found.given) - MAX_SHOWN} more constants or inputs")
    if found.passed_on:
        lines.append(f"  {found.passed_on} of the kernels and nodes pass on what they read")
    if found.finding is not None:
        return "\n".join([*lines, *finding_lines(found.finding)])
    lines += [f"  {held.text}" for held in found.outputs[:MAX_SHOWN]]
    if len(found.outputs) > MAX_SHOWN:
        lines.append(f"  ... and {len(found.outputs) - MAX_SHOWN} more outputs")
    if not lines:
        return "no NaN, and no infinity"
    return "\n".join([*lines, "nothing else makes NaN or infinity"])


def _kernels_line(found: Comparison) -> str:
    line = f"  kernels  {found.checked} compared with NumPy on the inputs they had"
    if found.skipped:
        line += f" ({found.skipped} left out: later turns of bodies, or values in no buffer)"
    if found.failed:
        return line + f": {len(found.failed)} beyond tolerance"
    score, label = found.worst
    return line + (
        f": the worst is at {100 * score:.0f} % of its tolerance ({label})" if label else ""
    )


def to_json(found: Comparison | Onset) -> str:
    """A comparison, or what was found of NaN and infinity, as JSON."""
    content: dict[str, Any] = {**asdict(found), "ok": found.ok}
    return dumps(content, indent=2, default=str)
