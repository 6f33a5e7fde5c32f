"""Random graphs give ONNX Runtime's numbers, on the CPU and on the GPU, at other sizes too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import engine
from engine.errors import EngineError
from tests.random_graphs import Array, RandomGraph
from tests.random_nodes import MAKERS
from tests.random_nodes.decided import DECIDED
from tests.random_nodes.makers import Maker
from tests.random_nodes.parts import PARTS

BATCHES = 6
PER_BATCH = 10
LONG = 400


def compare(want: Array, got: Array, where: str) -> None:
    """Shapes and types are the same; floats within 1e-4 of the largest magnitude."""
    assert got.shape == want.shape and got.dtype == want.dtype, where
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, where)
        return
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=1))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * scale, err_msg=where)


def other_sizes(graph: RandomGraph, model: onnx.ModelProto) -> list[dict[str, Array]]:
    """Feeds with one symbol changed to 0, 1 and 6; the graph may refuse them."""
    shapes = {i.name: list(i.type.tensor_type.shape.dim) for i in model.graph.input}
    symbols = sorted({d.dim_param for dims in shapes.values() for d in dims if d.dim_param})
    found = []
    for size in (0, 1, 6) if symbols else ():
        changed, feeds = graph.one_of(symbols), {}
        for name, array in graph.feeds().items():
            shape = tuple(
                size if d.dim_param == changed else n
                for d, n in zip(shapes[name], array.shape, strict=True)
            )
            same = shape == array.shape
            feeds[name] = array if same else graph.content(str(array.dtype), shape)
        found.append(feeds)
    return found


def check(seed: int, makers: Sequence[Maker] = MAKERS) -> int:
    """One graph on both devices: against ONNX Runtime, then, at other sizes, against each other.

    Returns how many of its values lie within others' buffers.
    """
    graph = RandomGraph(seed)
    graph.grow(makers, graph.int(3, 30))
    model = graph.model()
    names = [o.name for o in model.graph.output]
    with (
        engine.InferenceSession(model, device="cpu") as cpu,
        engine.InferenceSession(model, device="gpu") as gpu,
    ):
        for device, session in (("cpu", cpu), ("gpu", gpu)):
            results = session.run(None, graph.feeds())
            for name, got in zip(names, results, strict=True):
                compare(graph.array(name), got, f"seed {seed}, {name} on the {device}")
        for feeds in other_sizes(graph, model):
            sizes = {name: array.shape for name, array in feeds.items()}
            try:
                want = cpu.run(None, feeds)
            except EngineError:
                with pytest.raises(EngineError):
                    gpu.run(None, feeds)
                continue
            for name, one, other in zip(names, want, gpu.run(None, feeds), strict=True):
                compare(one, other, f"seed {seed}, {name} with {sizes}")
        return len(gpu.plan().parts.of)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_graphs(batch: int) -> None:
    for seed in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
        check(seed)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_graphs_of_parts(batch: int) -> None:
    seeds = range(batch * PER_BATCH, (batch + 1) * PER_BATCH)
    assert sum(check(seed, PARTS) for seed in seeds) > PER_BATCH // 2


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES // 2))
def test_random_graphs_of_sizes_that_data_decide(batch: int) -> None:
    for seed in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
        check(seed, DECIDED)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("seed", range(BATCHES * PER_BATCH, BATCHES * PER_BATCH + LONG))
def test_more_random_graphs_of_sizes_that_data_decide(seed: int) -> None:
    check(seed, DECIDED)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("seed", range(BATCHES * PER_BATCH, BATCHES * PER_BATCH + LONG))
def test_more_random_graphs_of_parts(seed: int) -> None:
    check(seed, PARTS)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("seed", range(BATCHES * PER_BATCH, BATCHES * PER_BATCH + LONG))
def test_more_random_graphs(seed: int) -> None:
    check(seed)
