"""The report for people: a summary, the nodes by subgraph, and what the passes did."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from engine.explain.changes import changes_text, full_changes_text
from engine.explain.sizes import count_text, ms_text, share_text, short, size_text
from engine.reasons import pattern

if TYPE_CHECKING:
    from engine.explain.report import KernelRow, NodeRow, Price, Report

PAGE = 40
"""Lines after which the summary is said again at the end."""

_MOST_NAME = 40
_MOST_REASONS = 12
_MOST_BODIES = 6
_WORDS = {
    "gpu": "on the GPU",
    "cpu": "on the CPU",
    "view": "only another shape (no work)",
    "host-shape": "size arithmetic on the CPU",
    "folded": "known when planning",
}


def where_text(report: Report) -> str:
    """How many nodes are where."""
    counts = Counter(n.device for n in report.nodes)
    return ", ".join(f"{counts[d]} {_WORDS[d]}" for d in _WORDS if counts[d])


def summary(report: Report) -> str:
    """What a person reads in ten seconds."""
    sizes = _sizes(report.binding)
    decision = report.decision
    if report.decided_at != report.binding:
        sizes += f"; planned in an earlier call, with {_sizes(report.decided_at)}"
        decision += ", at the sizes of that call" if report.mode == "auto" else ""
    gpu, cpu = report.count("gpu"), report.count("cpu")
    lines = [
        f"device     {report.device}",
        *([f"sizes      {sizes}"] if sizes else []),
        f"nodes      {len(report.nodes)}: {where_text(report)}",
    ]
    if gpu + cpu:
        lines.append(
            f"GPU share  {share_text(gpu, gpu + cpu)} of the nodes that compute, "
            f"{share_text(report.gpu_work, 1)} of their predicted work"
        )
    if report.kernels:
        lines += _gpu_lines(report)
    lines += _body_lines(report)
    lines.append(
        f"predicted  {ms_text(report.predicted_ms)} by the device's profile; all on the CPU "
        f"{ms_text(report.all_cpu_ms)}, all that can be on the GPU {ms_text(report.all_gpu_ms)}"
    )
    lines.append(f"chosen     {decision}")
    if report.measured is not None:
        lines.append(_measured_line(report))
    return "\n".join([*lines, *_reason_lines(report)])


def _sizes(binding: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in binding.items())


def _gpu_lines(report: Report) -> list[str]:
    on_gpu = sum(s.device == "gpu" for s in report.subgraphs)
    up, up_nbytes = report.moved("upload")
    down, down_nbytes = report.moved("download")
    weights = f"; {size_text(report.weights_nbytes)} of weights once"
    memory = {k: size_text(v) for k, v in report.memory.items()}
    return [
        f"subgraphs  {on_gpu} on the GPU, {len(report.subgraphs) - on_gpu} on the CPU, "
        f"{count_text(report.switches, 'switch')} between them; "
        f"{count_text(len(report.kernels), 'kernel')}",
        f"transfers  {size_text(up_nbytes)} up ({count_text(up, 'value')}), "
        f"{size_text(down_nbytes)} down ({count_text(down, 'value')}) a call"
        f"{weights if report.weights_nbytes else ''}",
        f"memory     {memory['peak']} of activations at peak ({memory['no_reuse']} without reuse, "
        f"{memory['lower_bound']} alive at once)",
    ]


def _body_lines(report: Report) -> Iterator[str]:
    """What control flow runs: a line, or a line for each body."""
    names = {node.key: f"{node.op_type} {short(node.name, 30)}" for node in report.nodes}
    for i, body in enumerate(report.bodies[:_MOST_BODIES]):
        where = " / ".join(names.get(part, part) for part in body.path)
        text = f"{where}: {count_text(body.nodes, 'node')}"
        if body.gpu_nodes is None:
            text += ", planned when it first runs"
        else:
            text += f", {body.gpu_nodes} on the GPU, {body.cpu_nodes} on the CPU"
        yield f"{'' if i else 'bodies':9}  {text}"
    if len(report.bodies) > _MOST_BODIES:
        yield f"{'':9}  and {len(report.bodies) - _MOST_BODIES} more bodies"


def _measured_line(report: Report) -> str:
    found = report.measured
    assert found is not None
    parts = []
    if found.kernels:
        clock = "the device's clock" if found.clock == "timestamps" else "the host's clock"
        parts.append(f"kernels {ms_text(sum(found.kernels.values()))} by {clock}")
    if found.nodes:
        parts.append(f"nodes on the CPU {ms_text(sum(found.nodes.values()))}")
    rest = f" ({', '.join(parts)})" if parts else ""
    return f"measured   {ms_text(found.total_ms)} a call, median of {found.calls}{rest}"


def _reason_lines(report: Report) -> Iterator[str]:
    groups = report.reasons()
    if not groups:
        return
    price_of = {price.reason: price for price in report.prices}
    yield "on the CPU because"
    for group in groups[:_MOST_REASONS]:
        yield f"  {group.reason}: {group.ops_text()}"
        price = None if group.faster else price_of.get(pattern(group.entries[0].reason))
        if price is not None:
            yield f"    {price_text(price, group.names_text())}"
    if len(groups) > _MOST_REASONS:
        yield f"  ... and {len(groups) - _MOST_REASONS} more reasons"


def price_text(price: Price, what: str) -> str:
    """A price in a sentence, about the nodes that `what` names."""
    effects = []
    if price.transfers or price.nbytes:
        verb = "remove" if (price.transfers or price.nbytes) > 0 else "add"
        count, nbytes = count_text(abs(price.transfers), "transfer"), size_text(abs(price.nbytes))
        if price.transfers and (price.transfers > 0) == (price.nbytes >= 0):
            effects.append(f"{verb} {count} ({nbytes})")
        elif price.transfers:
            more = "more" if price.nbytes < 0 else "less"
            effects.append(f"{verb} {count} but move {nbytes} {more}")
        else:
            effects.append(f"move {nbytes} {'less' if price.nbytes > 0 else 'more'}")
    if not price.moved and not effects:
        return f"supporting {what} on the GPU would change nothing: the CPU is faster at it"
    if price.saved_ms >= 0.0005:
        effects.append(f"save about {ms_text(price.saved_ms)}")
    elif price.saved_ms <= -0.0005:
        effects.append(f"take about {ms_text(-price.saved_ms)} longer")
    else:
        effects.append("take as long as now")
    return f"supporting {what} on the GPU would {' and '.join(effects)}"


def report_text(report: Report, passes: bool) -> str:
    """The summary, the nodes and the passes; the summary again if that was long."""
    first = summary(report)
    body = [*_node_lines(report), ""]
    body += full_changes_text(report.changes) if passes else changes_text(report.changes)
    again = ["", first] if len(body) > PAGE else []
    return "\n".join([first, "", *body, *again])


def _node_lines(report: Report) -> Iterator[str]:
    """The nodes by subgraph, under what the subgraph is."""
    ops = max((len(n.op_type) for n in report.nodes), default=0)
    names = min(max((len(n.name) for n in report.nodes), default=0), _MOST_NAME)
    measured = report.measured is not None
    times = f"  {'predicted':>11}" + (f"  {'measured':>11}" if measured else "")
    if report.subgraphs:
        yield f"{times}  {'operator':{ops}}  {'node':{names}}  where, or why not on the GPU"
    for index, part in enumerate(report.subgraphs):
        kernels = f" in {count_text(part.kernels, 'kernel')}" if part.kernels else ""
        times = f"predicted {ms_text(part.predicted_ms)}"
        if part.measured_ms is not None:
            times += f", measured {ms_text(part.measured_ms)}"
        where = part.device.upper()
        yield f"subgraph {index}: {where}, {count_text(part.nodes, 'node')}{kernels}; {times}"
        yield from _transfer_lines(report, index, "upload")
        told: set[int] = set()
        for node in report.nodes:
            if node.subgraph == index:
                yield _node_line(report, node, told, (ops, names), measured)
        yield from _transfer_lines(report, index, "download")
    rest = [n for n in report.nodes if n.subgraph is None]
    if rest:
        yield f"never run: {count_text(len(rest), 'node')}"
        yield from (_node_line(report, node, set(), (ops, names), measured) for node in rest)


def _transfer_lines(report: Report, subgraph: int, direction: str) -> list[str]:
    found = [t for t in report.transfers if (t.subgraph, t.direction) == (subgraph, direction)]
    if not found:
        return []
    parts = [f"{short(t.value, 40)} ({size_text(t.nbytes)})" for t in found]
    text = f"{direction} {', '.join(parts)}"
    sign = "→" if direction == "upload" else "←"
    return textwrap.wrap(text, 108, initial_indent=f"  {sign} ", subsequent_indent="    ")


def _node_line(
    report: Report, node: NodeRow, told: set[int], widths: tuple[int, int], measured: bool
) -> str:
    """A line: predicted and measured time, operator, name, and the kernel or the reason.

    The time of a kernel stands at the first of its nodes; `told` has the kernels seen so far.
    `widths` are those of operators and names.
    """
    ops, names = widths
    first = not node.kernels or node.kernels[0] not in told
    told.update(node.kernels)
    times = f"  {_ms_cell(node.predicted_ms, first)}"
    if measured:
        times += f"  {_ms_cell(node.measured_ms, first)}"
    name = short(node.name, _MOST_NAME)
    return f"{times}  {node.op_type:{ops}}  {name:{names}}  {_where(report, node)}".rstrip()


def _ms_cell(ms: float | None, first: bool) -> str:
    if ms is None or not first:
        return f"{'' if first else '″':>11}"
    return f"{ms_text(ms):>11}"


def _where(report: Report, node: NodeRow) -> str:
    if not node.kernels:
        words = {"view": "view: ", "host-shape": "size arithmetic: ", "folded": ""}
        _, _, rest = node.reason.partition(" ms here, ")  # the predicted time stands in its column
        return words.get(node.device, "") + (rest or node.reason)
    index = node.kernels[0]
    kernel: KernelRow = report.kernels[index]
    number = _numbers(node.kernels)
    if not node.fused_into:
        return number
    if kernel.nodes[0] == node.key:
        return f"{number}: {short(kernel.label, 56)}"
    return f"fused into {number}"


def _numbers(kernels: Sequence[int]) -> str:
    """Kernels by their numbers, which ascend: "kernel 3", "kernels 3-5", "kernels 3, 5"."""
    if len(kernels) == 1:
        return f"kernel {kernels[0]}"
    if kernels[-1] - kernels[0] == len(kernels) - 1:
        return f"kernels {kernels[0]}-{kernels[-1]}"
    return f"kernels {', '.join(map(str, kernels))}"


def shaders_text(report: Report) -> str:
    """Every shader of the plan, each once, under the dispatches that it is for."""
    parts = []
    for index, wgsl in enumerate(report.shaders):
        users = [(i, k) for i, k in enumerate(report.kernels) if index in k.shaders]
        lines = [f"// shader {index} of {len(report.shaders)}"]
        for i, kernel in users:
            lines.append(f"// kernel {i}: {kernel.label} ({_names(kernel.origin)})")
        parts.append("\n".join([*lines, wgsl]))
    return "\n".join(parts)


def _names(names: tuple[str, ...]) -> str:
    """The first names of a list, and how many follow."""
    shown = ", ".join(short(n, 40) for n in names[:3])
    return shown + (f", ... {len(names) - 3} more" if len(names) > 3 else "")
