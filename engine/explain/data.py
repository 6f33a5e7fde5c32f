"""The report as JSON: a documented schema with a version, for programs. See docs/explain.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.json_text import dumps
from engine.reasons import pattern

if TYPE_CHECKING:
    from engine.explain.report import Report

SCHEMA = "onnx-wgpu explain"
VERSION = 2
"""Raised when a field changes its meaning or goes; new fields may come without that."""


def to_json(report: Report, shaders: bool = False) -> str:
    """The report as JSON, with the shaders if asked."""
    content = to_dict(report)
    if shaders:
        content["shaders"] = list(report.shaders)
    return dumps(content, indent=2)


def to_dict(report: Report) -> dict[str, Any]:
    """The content of `to_json`, without the shaders."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "device": report.device,
        "mode": report.mode,
        "binding": report.binding,
        "decided_at": report.decided_at,
        "summary": _summary(report),
        "subgraphs": [asdict(s) for s in report.subgraphs],
        "nodes": [asdict(n) for n in report.nodes],
        "kernels": [asdict(k) for k in report.kernels],
        "transfers": [asdict(t) for t in report.transfers],
        "bodies": [asdict(b) for b in report.bodies],
        "values": {name: asdict(v) for name, v in report.values.items()},
        "inputs": list(report.inputs),
        "outputs": list(report.outputs),
        "reasons": _reasons(report),
        "changes": {name: asdict(c) for name, c in report.changes.items()},
        "measured": None if report.measured is None else asdict(report.measured),
    }


def _summary(report: Report) -> dict[str, Any]:
    gpu, cpu = report.count("gpu"), report.count("cpu")
    uploads, up_nbytes = report.moved("upload")
    downloads, down_nbytes = report.moved("download")
    return {
        "nodes": len(report.nodes),
        "gpu_nodes": gpu,
        "cpu_nodes": cpu,
        "gpu_node_share": gpu / (gpu + cpu) if gpu + cpu else 0.0,
        "gpu_work_share": report.gpu_work,
        "subgraphs": len(report.subgraphs),
        "switches": report.switches,
        "kernels": len(report.kernels),
        "uploads": uploads,
        "upload_nbytes": up_nbytes,
        "downloads": downloads,
        "download_nbytes": down_nbytes,
        "weights_nbytes": report.weights_nbytes,
        "peak_nbytes": report.memory["peak"],
        "no_reuse_nbytes": report.memory["no_reuse"],
        "lower_bound_nbytes": report.memory["lower_bound"],
        "predicted_ms": report.predicted_ms,
        "all_cpu_ms": report.all_cpu_ms,
        "all_gpu_ms": report.all_gpu_ms,
        "decision": report.decision,
    }


def _reasons(report: Report) -> list[dict[str, Any]]:
    price_of = {price.reason: price for price in report.prices}
    found = []
    for group in report.reasons():
        price = None if group.faster else price_of.get(pattern(group.entries[0].reason))
        fields = None if price is None else asdict(price)
        if fields is not None:
            fields.pop("reason")
        found.append(
            {
                "reason": group.reason,
                "faster_on_cpu": group.faster,
                "nodes": [entry.key for entry in group.entries],
                "ops": dict(group.ops),
                "if_supported": fields,
            }
        )
    return found
