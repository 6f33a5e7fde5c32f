"""Schedule: groups and CPU nodes in an order with few switches, with the transfers between them.

GPU work is gathered into batches; each batch is submitted once, and CPU nodes that do not need its
results run before the wait. A value crosses at most once per direction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from engine.dims import Dim, symbols_of
from engine.errors import PlanError
from engine.groups import Group
from engine.ir import Graph, Node
from engine.records import dataclass


@dataclass(frozen=True)
class Upload:
    """Host to GPU."""

    value: str


@dataclass(frozen=True)
class RunGpu:
    """The dispatches of one group."""

    group: Group


@dataclass(frozen=True)
class Download:
    """GPU to host; the data is there after the next `Wait`."""

    value: str


@dataclass(frozen=True)
class Submit:
    """Hands the recorded batch to the device."""


@dataclass(frozen=True)
class Wait:
    """Until the downloads of these values have arrived."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class RunCpu:
    """One node on the host, control flow included."""

    node: Node


@dataclass(frozen=True)
class Bind:
    """Reads sizes off a host value: (symbol, value, axis) each."""

    symbols: tuple[tuple[str, str, int], ...]


Task = Upload | RunGpu | Download | Submit | Wait | RunCpu | Bind


@dataclass(frozen=True, eq=False)
class _Unit:
    """A group or a CPU node, with what it needs and gives."""

    index: int
    work: Group | Node
    needs: frozenset[str]
    gives: tuple[str, ...]

    @property
    def on_gpu(self) -> bool:
        return isinstance(self.work, Group)


def binders(graph: Graph, known: Collection[str]) -> Mapping[str, tuple[str, int]]:
    """For each symbol that is not in `known`: the first (value, axis) whose size it is."""
    found: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        for name in node.writes:
            tensor = graph.tensor(name)
            for axis, dim in enumerate(tensor.shape or () if tensor else ()):
                symbols = symbols_of(dim)
                if len(symbols) == 1:
                    symbol = next(iter(symbols))
                    if symbol not in known and symbol not in found and str(dim) == symbol:
                        found[symbol] = (name, axis)
    return found


def schedule(
    graph: Graph,
    groups: Sequence[Group],
    cpu_nodes: Sequence[Node],
    *,
    on_host: Collection[str],
    symbols: Collection[str],
    root: Callable[[str], str],
) -> tuple[Task, ...]:
    """Tasks in an order that respects every dependency.

    Args:
        graph: the placed graph.
        groups, cpu_nodes: what runs where; nodes in neither are folded or views.
        on_host: values that exist on the host from the start (inputs, constants, known sizes).
        symbols: names bound from the inputs; others are bound by `Bind` tasks.
        root: the value whose buffer a value shares (itself unless it is a view).
    """
    return _Scheduler(graph, groups, cpu_nodes, on_host, symbols, root).run()


class _Scheduler:
    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        cpu_nodes: Sequence[Node],
        on_host: Collection[str],
        symbols: Collection[str],
        root: Callable[[str], str],
    ) -> None:
        self.graph = graph
        self.root = root
        self.known = set(symbols)
        self.binders = binders(graph, symbols)
        self.host = set(on_host)
        self.device: set[str] = set()
        self.pending: list[str] = []
        self.tasks: list[Task] = []
        order = {name: i for i, n in enumerate(graph.nodes) for name in n.writes}
        self.units = [self._gpu_unit(g, order) for g in groups]
        self.units += [self._cpu_unit(n, order) for n in cpu_nodes]
        self.units.sort(key=lambda u: u.index)
        self.maker = {name: u for u in self.units for name in u.gives}
        self.feeds_gpu = self._find_feeding()
        self.wanted = {root(n) for u in self.units if not u.on_gpu for n in u.needs}
        self.wanted |= {root(n) for n in graph.outputs}

    def _gpu_unit(self, group: Group, order: Mapping[str, int]) -> _Unit:
        sizes = self._sizes((*group.inputs, *(n for node in group.nodes for n in node.writes)))
        needs = frozenset(map(self.root, group.inputs)) | sizes | self._told_by(group.inputs)
        gives = tuple(dict.fromkeys(map(self.root, group.outputs)))
        return _Unit(order[group.key], group, needs, gives)

    def _cpu_unit(self, node: Node, order: Mapping[str, int]) -> _Unit:
        needs = frozenset(self.root(n) for n in node.reads) | self._told_by(node.reads)
        return _Unit(order[node.key], node, needs, node.writes)

    def _told_by(self, names: Iterable[str]) -> frozenset[str]:
        """The values whose sizes bind the symbols in the contents of `names`."""
        dims = [d for n in names for d in self._contents(n)]
        return frozenset(
            self.binders[s][0] for d in dims for s in symbols_of(d) if s in self.binders
        )

    def _contents(self, name: str) -> list[Dim]:
        dims = self.graph.values[name].dims
        return [] if dims is None else list(dims.reshape(-1))

    def _sizes(self, names: Sequence[str]) -> frozenset[str]:
        """The values whose sizes bind the symbols in the shapes of `names`."""
        found: set[str] = set()
        for name in names:
            tensor = self.graph.tensor(name)
            for dim in tensor.shape or () if tensor else ():
                found.update(self.binders[s][0] for s in symbols_of(dim) if s in self.binders)
        return frozenset(found)

    def _find_feeding(self) -> set[int]:
        """Units with a GPU unit among their consumers, however far away."""
        feeding: set[int] = set()
        stack = [unit for unit in self.units if unit.on_gpu]
        while stack:
            for name in stack.pop().needs:
                maker = self.maker.get(name)
                if maker is not None and maker.index not in feeding:
                    feeding.add(maker.index)
                    stack.append(maker)
        return feeding

    def run(self) -> tuple[Task, ...]:
        left = list(self.units)
        while left:
            count = len(left)
            left = self._host_phase(left, lambda u: u.index in self.feeds_gpu)
            left = self._gpu_phase(left)
            if not any(u.on_gpu for u in left):
                left = self._host_phase(left, lambda u: True)
            if len(left) == count:
                names = ", ".join(sorted({n for n in left[0].needs} - self.host - self.device))
                raise PlanError(f"nothing provides {names}, which {left[0].work} needs")
        self._wait(n for n in map(self.root, self.graph.outputs) if n not in self.host)
        return tuple(self.tasks)

    def _host_phase(self, left: list[_Unit], take: Callable[[_Unit], bool]) -> list[_Unit]:
        """Runs ready CPU units: those that need no result of a pending batch first."""
        for may_wait in (False, True):
            progress = True
            while progress:
                progress = False
                for unit in list(left):
                    available = self.host | set(self.pending) if may_wait else self.host
                    if unit.on_gpu or not take(unit) or not self._ready(unit, available):
                        continue
                    self._wait(n for n in unit.needs if n not in self.host)
                    assert isinstance(unit.work, Node)
                    self.tasks.append(RunCpu(unit.work))
                    self.host.update(unit.gives)
                    self._bind(unit)
                    left.remove(unit)
                    progress = True
        return left

    def _ready(self, unit: _Unit, available: Collection[str]) -> bool:
        return all(n in available for n in unit.needs)

    def _wait(self, names: Iterable[str]) -> None:
        wanted = [n for n in names if n in self.pending]
        if wanted:
            self.tasks.append(Wait(tuple(self.pending)))
            self.host.update(self.pending)
            self.pending.clear()

    def _bind(self, unit: _Unit) -> None:
        fresh = tuple(
            (symbol, value, axis)
            for symbol, (value, axis) in self.binders.items()
            if value in unit.gives and symbol not in self.known
        )
        if fresh:
            self.tasks.append(Bind(fresh))
            self.known.update(s for s, _, _ in fresh)

    def _gpu_phase(self, left: list[_Unit]) -> list[_Unit]:
        """One batch: every GPU unit that is ready, uploads first, then downloads and submit."""
        batch: list[_Unit] = []
        progress = True
        made = set(self.device)
        while progress:
            progress = False
            for unit in list(left):
                if unit.on_gpu and self._ready(unit, made | self.host):
                    batch.append(unit)
                    made.update(unit.gives)
                    left.remove(unit)
                    progress = True
        if not batch:
            return left
        inside = {n for u in batch for n in u.gives}
        for unit in batch:
            assert isinstance(unit.work, Group)
            for name in map(self.root, unit.work.inputs):
                constant = self.graph.constant(name) is not None
                if not constant and name not in self.device and name not in inside:
                    self.tasks.append(Upload(name))
                    self.device.add(name)
        self.tasks += [RunGpu(u.work) for u in batch if isinstance(u.work, Group)]
        self.device.update(inside)
        down = [n for u in batch for n in u.gives if n in self.wanted]
        self.tasks += [Download(n) for n in down]
        self.pending += down
        self.tasks.append(Submit())
        return left
