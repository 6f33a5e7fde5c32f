"""Measures the figures of a GPU: through the engine, with the kernels that models run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from engine.ir import Graph
from engine.rates import DeviceProfile, GpuRates
from engine.runtime.calibrate_lab import Chain, Lab, less, rate
from engine.runtime.device import Device

_IN_THREADS = (
    "fma_per_s",
    "loads_per_s",
    "bytes_per_s",
    "strided_per_s",
    "gathers_per_s",
    "ops_per_s",
)
_MORE = 4
_LAUNCHES = 32
_VALUES = 8
_TINY = 64
_CHANNELS = 64
_PLANE = 256
_LARGE = (_PLANE, 1024)
_LARGE_NBYTES = 4 * _PLANE * 1024


def measure_gpu(device: Device, profile: DeviceProfile) -> GpuRates:
    """Every figure of the GPU and of the way to it.

    Args:
        device: nothing else may use it meanwhile.
        profile: its figures of NumPy are known; those of the GPU count for nothing.
    """
    lab = Lab(device, profile)
    found: dict[str, int] = {}
    _overheads(lab, found)
    pass_ns = _each_ns(lab, lambda count: _steps(Chain.start(*_LARGE), count))
    found["bytes_per_s"] = rate(2 * _LARGE_NBYTES, less(pass_ns, found["launch_ns"]))
    _bandwidths(lab, found, pass_ns)
    rates = dataclasses.replace(profile.gpu, **found)
    for field, make, part in (
        ("ops_per_s", _functions, "ops"),
        ("strided_per_s", _transposes, "strided"),
        ("gathers_per_s", _gathers, "gathers"),
        ("loads_per_s", _windows, "loads"),
        ("fma_per_s", _products, "fmas"),
    ):
        rates = dataclasses.replace(rates, **{field: _rate_of(lab, rates, make, part)})
    threads = lab.threads(_products(1 + _MORE).graph())
    return dataclasses.replace(
        rates, **{field: int(getattr(rates, field) * threads) for field in _IN_THREADS}
    )


def _overheads(lab: Lab, found: dict[str, int]) -> None:
    """Launch, submit and transfers of values that hold next to nothing."""
    one, four = (_steps(Chain.start(_TINY), n).graph() for n in (1, 4))
    launch = lab.more_ns(one, _steps(Chain.start(_TINY), 1 + _LAUNCHES).graph()) // _LAUNCHES
    upload = less(lab.more_ns(one, _many_inputs()) // _VALUES, launch)
    readback = less(lab.more_ns(one, _many_outputs()) // _VALUES, launch)
    (whole,) = lab.times_of_ns(lab.call(one))
    cpu = lab.profile.cpu
    waited = lab.more_ns(four, four, on_cpu=_every_other(4)) // 2 + launch
    found.update(
        launch_ns=launch,
        upload_latency_ns=upload,
        readback_ns=readback,
        submit_ns=less(whole, cpu.call_ns, launch, upload, readback),
        download_latency_ns=max(less(waited, upload, cpu.node_ns, 2 * cpu.step_ns), readback),
    )


def _steps(chain: Chain, count: int) -> Chain:
    for index in range(count):
        chain.add("Neg" if index % 2 else "Floor")
    return chain


def _every_other(count: int) -> list[str]:
    nodes = _steps(Chain.start(_TINY), count).nodes
    return [node.key for node in nodes[1::2]]


def _many_inputs() -> Graph:
    chain = Chain.start(_TINY).add("Floor")
    names = [f"x{i}" for i in range(_VALUES)]
    for name in names:
        chain.values[name] = dataclasses.replace(chain.values["x"], name=name)
        chain.add("Add", name)
    return chain.graph(inputs=("x", *names))


def _many_outputs() -> Graph:
    chain = _steps(Chain.start(_TINY), _VALUES + 1)
    return chain.graph(*(node.key for node in chain.nodes))


def _bandwidths(lab: Lab, found: dict[str, int], pass_ns: int) -> None:
    """Large values up and down, and up alone; a dispatch reads and writes them, which is known."""
    part, whole = (Chain.start(*_LARGE).add("Floor") for _ in range(2))
    part.add("Slice", *(np.array([n], np.int64) for n in (0, 1, 0)), shape=(1, _LARGE[1]))
    tiny = Chain.start(_TINY).add("Floor").graph()
    down_ns = lab.more_ns(part.graph(), whole.graph())
    found["download_bytes_per_s"] = rate(_LARGE_NBYTES, down_ns)
    found["upload_bytes_per_s"] = rate(
        _LARGE_NBYTES, less(lab.more_ns(tiny, part.graph()), pass_ns, found["launch_ns"])
    )


def _each_ns(lab: Lab, make: Callable[[int], Chain]) -> int:
    """Time of one more node of a kind."""
    return lab.more_ns(make(1).graph(), make(1 + _MORE).graph()) // _MORE


def _rate_of(lab: Lab, rates: GpuRates, make: Callable[[int], Chain], part: str) -> int:
    """How much of `part` is done a second, where all other parts of a node's work are known."""
    work = lab.work(make(1).graph())
    others = dataclasses.replace(work, **{part: 0}).ns(rates)
    return rate(getattr(work, part), less(_each_ns(lab, make), others))


def _functions(count: int) -> Chain:
    chain = Chain.start(_PLANE, _PLANE)
    for _ in range(count):
        chain.add("Erf")
    return chain


def _transposes(count: int) -> Chain:
    chain = Chain.start(16, _PLANE * 16)
    for _ in range(count):
        chain.add("Transpose", shape=chain.sizes[::-1], perm=[1, 0])
    return chain


def _gathers(count: int) -> Chain:
    chain = Chain.start(_PLANE * 4, 64)
    places = np.random.default_rng(0).permutation(_PLANE * 4)
    for _ in range(count):
        chain.add("Gather", places, axis=0)
    return chain


def _windows(count: int) -> Chain:
    chain = Chain.start(1, 16, 62, 62)
    weights = np.full((16, 1, 3, 3), 1 / 9, np.float32)
    for _ in range(count):
        chain.add("Conv", weights, group=16, pads=[1, 1, 1, 1])
    return chain


def _products(count: int) -> Chain:
    chain = Chain.start(1, _CHANNELS, 32, 32)
    for _ in range(count):
        chain.add("Conv", np.full((_CHANNELS, _CHANNELS, 1, 1), 1 / _CHANNELS, np.float32))
    return chain
