"""Plan: everything a run needs as data, sizes still symbolic. Bound to numbers in `bind.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from engine import costs
from engine import schedule as tasks
from engine.checks import Check
from engine.dims import Dim, Guard, symbol
from engine.errors import PlanError
from engine.groups import Fusion
from engine.ir import Array, Graph, Shape, TensorType
from engine.layout import Storage
from engine.memory import MemoryPlan
from engine.partition import Partition
from engine.parts import Parts
from engine.records import dataclass
from engine.shader import Kernel
from engine.target import Target


@dataclass(frozen=True)
class Variant:
    """One way to run a dispatch.

    Attributes:
        when: guards under which it may run; all must hold.
        kernel: index into `Plan.kernels`.
        values: the value in each storage buffer, in binding order; of parts the whole.
        params: the value of each uniform word, in order.
        grid: workgroups in x, y, z.
        trips: bound on the loop iterations of one invocation.
        repeat: how often it is dispatched; see `KernelCall`.
        touches: the values that it reads and writes, which may be parts of those in the buffers:
            first one for each buffer, then those that lie in the same ones.
    """

    when: tuple[Guard, ...]
    kernel: int
    values: tuple[str, ...]
    params: tuple[Dim | float, ...]
    grid: tuple[Dim, Dim, Dim]
    trips: Dim
    repeat: Dim = 1
    touches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dispatch:
    """One dispatch: the first variant whose guards hold runs; the last has none.

    Attributes:
        label: its operators.
        origin: names of the model's nodes that it computes.
        nodes: keys of the graph's nodes that it computes.
        outputs: values that it writes.
        flops, nbytes: operations, and bytes read and written, from which its time is predicted.
        tuned_as: what tuning knows its operator by; "" if there is nothing to choose.
        style: the style of kernel that was chosen; see `engine.tuning`.
    """

    label: str
    origin: tuple[str, ...]
    nodes: tuple[str, ...]
    variants: tuple[Variant, ...]
    outputs: tuple[str, ...]
    flops: Dim = 0
    nbytes: Dim = 0
    tuned_as: str = ""
    style: str = ""


Step = (
    tasks.Upload | Dispatch | tasks.Download | tasks.Submit | tasks.Wait | tasks.RunCpu | tasks.Bind
)


@dataclass(frozen=True)
class Derived:
    """A constant computed from another one when it is uploaded, such as packed weights."""

    source: str
    recipe: str
    make: Callable[[Array], Array] = field(compare=False)


@dataclass(frozen=True, eq=False)
class Packed:
    """The `make` of a `Derived` whose result is known already."""

    array: Array

    def __call__(self, source: Array) -> Array:
        return self.array


@dataclass(frozen=True)
class Append:
    """A Concat of two, computed by writing `new` behind `past` in the buffer of both.

    Attributes:
        past: graph input that stays on the device between calls.
        new: what is appended.
        grown: the Concat's output, returned on the device.
        axis: along which it grows.
    """

    past: str
    new: str
    grown: str
    axis: int

    @property
    def capacity(self) -> str:
        """The symbol for how many indices along `axis` the buffer has room for."""
        return f"{self.grown}:capacity"

    def storage(self, found: Storage) -> Storage:
        """How both lie in the buffer, given how such values lie elsewhere."""
        room = symbol(self.capacity)
        return replace(found, packing=1, layout="growing", axis=self.axis, capacity=room)


@dataclass(frozen=True)
class Plan:
    """How a graph runs on a device.

    Attributes:
        graph: after passes; nodes, types and constants are read from it.
        target: the limits and features that the kernels keep to.
        symbols: names bound from the inputs' shapes.
        guards: what the inputs' sizes must fulfil; a call that breaks one gets another plan.
        checks: what sizes must fulfil when they are bound; where they do not, nodes go to the CPU.
        steps: in order.
        kernels: rendered once each.
        roots: value to the value whose buffer it shares, for views.
        parts: values that lie within the buffers of others, and the nodes that this saves.
        storages: of every value that is on the GPU at some time.
        memory: the buffer of each value that is neither constant nor a view, and their sizes.
        derived: constants computed from others, by name.
        sizes: names of values that are written when sizes are bound, never computed.
        scratch: types of buffers that only kernels see.
        appends: values that grow in place, by name of the grown value.
        checked_inputs: int64 inputs that are taken to fit int32; a call that breaks this gets
            another plan.
        partition: where each node runs, and why; what crosses.
        fusion: the groups that became kernels, and what nearly did.
        binding: the sizes that decided partition and memory.
        profile: the rates by which times are predicted.
    """

    graph: Graph
    target: Target
    symbols: tuple[str, ...]
    guards: tuple[Guard, ...]
    checks: tuple[Check, ...]
    steps: tuple[Step, ...]
    kernels: tuple[Kernel, ...]
    roots: Mapping[str, str]
    parts: Parts
    storages: Mapping[str, Storage]
    memory: MemoryPlan
    derived: Mapping[str, Derived]
    sizes: frozenset[str]
    scratch: Mapping[str, TensorType]
    appends: Mapping[str, Append]
    checked_inputs: tuple[str, ...]
    partition: Partition
    fusion: Fusion
    binding: Mapping[str, int]
    profile: costs.DeviceProfile

    def root(self, name: str) -> str:
        """The value whose buffer `name` shares."""
        return self.roots.get(name, name)

    def tensor(self, name: str) -> TensorType:
        """Type of a value that may be on the GPU. Raises: PlanError if it is not a tensor."""
        found = self.scratch.get(name) or self.graph.tensor(name)
        if found is None:
            raise PlanError(f"value {name!r} is not a tensor of known type")
        return found

    def shape(self, name: str) -> Shape:
        """Shape of such a value. Raises: PlanError if its rank is unknown."""
        shape = self.tensor(name).shape
        if shape is None:
            raise PlanError(f"the rank of {name!r} is unknown")
        return shape

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        return tuple(s for s in self.steps if isinstance(s, Dispatch))


def turns(steps: Sequence[Step], kernels: Sequence[Kernel]) -> list[tuple[int, ...]]:
    """Indices of all steps in order; those that take turns, neighbouring stages of a node that
    repeat, are together."""
    found: list[tuple[int, ...]] = []
    before: tuple[str, ...] = ()
    for index, step in enumerate(steps):
        nodes: tuple[str, ...] = ()
        if isinstance(step, Dispatch) and any(kernels[v.kernel].repeats for v in step.variants):
            nodes = step.nodes
        if nodes and nodes == before:
            found[-1] = (*found[-1], index)
        else:
            found.append((index,))
        before = nodes
    return found


def epochs(symbols: Sequence[str], steps: Sequence[Step]) -> Mapping[str, int]:
    """When each symbol is bound: 0 by the inputs, then one more with each `Bind` step."""
    found = dict.fromkeys(symbols, 0)
    count = 0
    for step in steps:
        if isinstance(step, tasks.Bind):
            count += 1
            found.update((symbol, count) for symbol, _, _ in step.symbols)
    return found
