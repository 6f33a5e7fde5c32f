"""Device profiles for people: a line a figure, with its unit, what it counts, and its source."""

from __future__ import annotations

from engine.rates import DeviceProfile

_FIGURES = {
    "gpu.submit_ns": "a call that uses the GPU at all",
    "gpu.launch_ns": "one more dispatch",
    "gpu.fma_per_s": "multiply-adds in register tiles",
    "gpu.loads_per_s": "loads of single elements in inner loops",
    "gpu.bytes_per_s": "memory, four elements at a time",
    "gpu.strided_per_s": "elements moved one by one",
    "gpu.gathers_per_s": "elements moved by indices",
    "gpu.ops_per_s": "operations on single elements",
    "gpu.upload_latency_ns": "one value up",
    "gpu.upload_bytes_per_s": "upload",
    "gpu.readback_ns": "one value back at the end of a call",
    "gpu.download_latency_ns": "one value back in mid-run, waited for",
    "gpu.download_bytes_per_s": "download",
    "cpu.call_ns": "a call of a session",
    "cpu.node_ns": "a node on the CPU",
    "cpu.step_ns": "a call of NumPy in a node",
    "cpu.product_ns": "a matrix product in a batch",
    "cpu.flops_per_s": "operations of a large matrix product",
    "cpu.panel_bytes_per_s": "operands of a product from memory",
    "cpu.row_bytes_per_s": "the matrix of a product with a vector",
    "cpu.cache_bytes_per_s": "a pass over arrays in the cache",
    "cpu.memory_bytes_per_s": "a pass over large arrays",
    "cpu.strided_per_s": "elements copied in steps",
    "cpu.gathers_per_s": "elements picked by indices",
    "cpu.functions_per_s": "elements of exp and the like",
}


def profile_text(profile: DeviceProfile) -> list[str]:
    """The name, and a line for each figure."""
    lines = [profile.name]
    for name, meaning in _FIGURES.items():
        part, _, field = name.partition(".")
        value = _amount(field, getattr(getattr(profile, part), field))
        source = profile.sources.get(name, "measured")
        lines.append(f"  {part}  {value:>12}  {meaning:40}  {source}".rstrip())
    return lines


def _amount(field: str, value: int) -> str:
    if field.endswith("_ns"):
        return f"{value / 1e3:.1f} us"
    unit = "GB/s" if field.endswith("bytes_per_s") else "G/s"
    return f"{value / 1e9:.3g} {unit}"
