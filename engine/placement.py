"""The split of a graph between GPU and CPU that costs least, by a minimum cut.

**The model.** A placement gives every node to the GPU or to the CPU. It costs
  - what each node costs where it is (`costs.node_ns`; views cost nothing on either side),
  - one upload for each value that exists on the host and is read by a GPU node, however many,
  - one download for each value made on the GPU and read by a CPU node or returned, and a wait
    for each that a CPU node reads,
  - one submit if any node but a view is on the GPU,
  - less what fusion saves for each pair of neighbours that may fuse and are both on the GPU.
Graph inputs and outputs live on the host, constants on both sides; pinned nodes have no choice.

**The cut.** Source side = GPU, sink side = CPU; an edge is paid if it leads from the GPU side to
the CPU side. Every node is a vertex n (a pinned one is the sink itself):
  - the cost of n, less a constant, is an edge source->n (paid on the CPU) or n->sink;
  - an upload of v, made by p: a vertex u, the edge u->p with the price, r->u without limit for
    each GPU reader r. If some r is on the GPU so must u be, and the price is paid unless p is there
    too. If none is, u may lie on the sink side, free. So the best u pays exactly for an upload;
  - a download of v: a vertex d, p->d with the price, d->r without limit for each CPU reader r: the
    mirror image; the wait likewise, with a vertex of its own;
  - the submit: a vertex z, n->z without limit, z->sink with the price;
  - a saving s of the pair a, b: `-s*[a and b on the GPU] = -s*[a on the GPU] + s*[a on the GPU, b
    not]`. The first part goes into the cost of a, the second is the edge a->b.
All prices are integers >= 0. So a placement, with the best sides for u, d and z, is a cut of its
cost less a constant; and a cut of finite weight weighs at least what its placement costs, less the
same constant. The minima agree, and the minimum cut is a cheapest placement. Of several, the one
with the most nodes on the GPU is taken.

Launches saved by fusion are counted on a spanning forest of the pairs, so that k nodes fused into
one never save more than k - 1; of nodes with a kernel of their own a tree has at most one. Bytes
are saved once for the read, and once more for the write if nobody else wants the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any

from engine import costs, ops
from engine.costs import DeviceProfile, Direction, Sizes, Work
from engine.errors import PlanError
from engine.ir import Graph, Node
from engine.ops import Support
from engine.records import dataclass
from engine.support import Role, reads_no_content, reads_shape_only
from engine.target import Target

MayFuse = Callable[[Node, Node], bool]


@dataclass(frozen=True)
class Transfer:
    """A value that may have to cross, and what that would cost.

    Attributes:
        producer: id of the node that makes it; None for a graph input.
        gpu_readers: ids of the nodes that read its content if they are on the GPU.
        cpu_readers: ids of the nodes that read its content if they are on the CPU.
        returned: whether it is a graph output.
        nbytes: what crosses, in bytes.
        upload_ns, readback_ns: the price of each direction.
        wait_ns: what is paid beyond `readback_ns` if a CPU node waits for the value in mid-run.
    """

    value: str
    producer: int | None
    gpu_readers: tuple[int, ...]
    cpu_readers: tuple[int, ...]
    returned: bool
    nbytes: int
    upload_ns: int
    readback_ns: int
    wait_ns: int

    def direction(self, on_gpu: Set[int]) -> Direction | None:
        """How it crosses if the nodes `on_gpu` are on the GPU; None if it does not."""
        if self.producer in on_gpu:
            wanted = self.returned or any(r not in on_gpu for r in self.cpu_readers)
            return "download" if wanted else None
        return "upload" if any(r in on_gpu for r in self.gpu_readers) else None

    def cost_ns(self, on_gpu: Set[int]) -> int:
        """What crossing costs under a placement, in nanoseconds."""
        match self.direction(on_gpu):
            case "upload":
                return self.upload_ns
            case "download":
                waited = any(r not in on_gpu for r in self.cpu_readers)
                return self.readback_ns + (self.wait_ns if waited else 0)
            case _:
                return 0


@dataclass(frozen=True)
class Saving:
    """What fusing two neighbours saves if both are on the GPU."""

    first: int
    second: int
    saved_ns: int


@dataclass(frozen=True)
class CostModel:
    """All costs of one graph; a node's id is its place in `nodes`. Times in nanoseconds.

    Attributes:
        nodes: the graph's nodes but those that are never run.
        free: ids of views, which need no submit.
        only_cpu: ids of nodes that cannot be on the GPU.
        call_ns: what a call costs wherever its nodes are.
    """

    nodes: tuple[Node, ...]
    gpu_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    free: frozenset[int]
    only_cpu: frozenset[int]
    transfers: tuple[Transfer, ...]
    savings: tuple[Saving, ...]
    submit_ns: int
    call_ns: int = 0

    @property
    def possible(self) -> frozenset[int]:
        """Ids of the nodes that may be on the GPU."""
        return frozenset(range(len(self.nodes))) - self.only_cpu

    def total_ns(self, on_gpu: Set[int]) -> int:
        """What a placement costs."""
        total = self.call_ns + sum(
            self.gpu_ns[i] if i in on_gpu else self.cpu_ns[i] for i in range(len(self.nodes))
        )
        total += sum(t.cost_ns(on_gpu) for t in self.transfers)
        total -= sum(s.saved_ns for s in self.savings if s.first in on_gpu and s.second in on_gpu)
        return total + (self.submit_ns if on_gpu - self.free else 0)

    def group_ns(self, keys: Collection[str]) -> int:
        """What nodes cost on the GPU that are fused into one kernel, without transfers."""
        members = {i for i, node in enumerate(self.nodes) if node.key in keys}
        saved = sum(s.saved_ns for s in self.savings if {s.first, s.second} <= members)
        return max(sum(self.gpu_ns[i] for i in members) - saved, 0)


def build_cost_model(
    graph: Graph,
    support: Mapping[str, Support],
    roles: Mapping[str, Role],
    profile: DeviceProfile,
    *,
    may_fuse: MayFuse | None = None,
    anchors: Collection[str] = (),
    in_place: Collection[str] = (),
    binding: Mapping[str, int] | None = None,
    target: Target | None = None,
) -> CostModel:
    """The costs of every placement of `graph` at `binding`.

    Args:
        support: node key to whether the GPU can run it.
        roles: node key to role; folded nodes are left out, host-shape ones pinned to the CPU.
        may_fuse: whether two neighbours, the first feeding the second, would become one kernel.
        anchors: keys of nodes with kernels of their own, two of which never become one.
        in_place: keys of nodes that need no kernel on the GPU, where their neighbours are there.
        target: whose kernels the GPU would run; the baseline's by default.
    """
    nodes = tuple(node for node in graph.nodes if roles.get(node.key) != "folded")
    sizes = Sizes(graph, binding)
    works = costs.works(graph, sizes, target)
    only_cpu = frozenset(
        i for i, n in enumerate(nodes) if not support[n.key].ok or roles.get(n.key) == "host-shape"
    )
    fuses: MayFuse | None = None
    if may_fuse is not None:
        fuses = _outside(in_place, may_fuse)
    return CostModel(
        nodes=nodes,
        gpu_ns=tuple(
            0 if n.key in in_place else costs.node_ns("gpu", works[n.key], profile) for n in nodes
        ),
        cpu_ns=tuple(costs.node_ns("cpu", works[n.key], profile) for n in nodes),
        free=frozenset(i for i, n in enumerate(nodes) if works[n.key].free),
        only_cpu=only_cpu,
        transfers=tuple(_transfers(graph, nodes, only_cpu, sizes, profile)),
        savings=tuple(_savings(graph, nodes, only_cpu, works, sizes, profile, fuses, anchors)),
        submit_ns=profile.gpu.submit_ns,
        call_ns=profile.cpu.call_ns,
    )


def _outside(in_place: Collection[str], may_fuse: MayFuse) -> MayFuse:
    """The predicate for pairs of nodes that have kernels."""
    return lambda a, b: a.key not in in_place and b.key not in in_place and may_fuse(a, b)


def cpu_reads(graph: Graph, node: Node) -> tuple[str, ...]:
    """The values whose content `node` needs on the host, if it runs there.

    Not among them: constants, sizes that are known from the binding, and what only has a shape.
    """
    if reads_no_content(node):
        return ()
    return tuple(
        name
        for name in node.reads
        if graph.constant(name) is None
        and not (graph.values[name].dims is not None and reads_shape_only(node, name))
    )


def gpu_reads(graph: Graph, node: Node) -> tuple[str, ...]:
    """The values that `node` needs in buffers, if it runs on the GPU; constants are there."""
    return tuple(name for name in ops.kernel_inputs(node) if graph.constant(name) is None)


def _transfers(
    graph: Graph,
    nodes: tuple[Node, ...],
    only_cpu: frozenset[int],
    sizes: Sizes,
    profile: DeviceProfile,
) -> Iterator[Transfer]:
    producer: dict[str, int] = {}
    on_gpu: dict[str, list[int]] = {}
    on_cpu: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        producer.update(dict.fromkeys(node.writes, i))
        for name in cpu_reads(graph, node):
            on_cpu.setdefault(name, []).append(i)
        if i not in only_cpu:
            for name in gpu_reads(graph, node):
                on_gpu.setdefault(name, []).append(i)
    for name in dict.fromkeys((*graph.inputs, *graph.captures, *producer)):
        maker = producer.get(name)
        stays = maker is None or maker in only_cpu
        if graph.constant(name) is not None or (stays and name not in on_gpu):
            continue
        nbytes = sizes.gpu_nbytes(name)
        yield Transfer(
            value=name,
            producer=maker,
            gpu_readers=tuple(on_gpu.get(name, ())),
            cpu_readers=tuple(on_cpu.get(name, ())),
            returned=graph.is_output(name),
            nbytes=nbytes,
            upload_ns=costs.transfer_ns("upload", nbytes, profile),
            readback_ns=costs.transfer_ns("download", nbytes, profile),
            wait_ns=max(profile.gpu.download_latency_ns - profile.gpu.readback_ns, 0),
        )


def _savings(
    graph: Graph,
    nodes: tuple[Node, ...],
    only_cpu: frozenset[int],
    works: Mapping[str, Work],
    sizes: Sizes,
    profile: DeviceProfile,
    may_fuse: MayFuse | None,
    anchors: Collection[str],
) -> Iterator[Saving]:
    if may_fuse is None:
        return
    ids = {node.key: i for i, node in enumerate(nodes)}
    root = list(range(len(nodes)))
    anchored = [node.key in anchors for node in nodes]

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for i, node in enumerate(nodes):
        between: dict[int, list[str]] = {}
        for name in gpu_reads(graph, node) if i not in only_cpu else ():
            maker = graph.producer.get(name)
            if maker is not None and maker.key in ids:
                between.setdefault(ids[maker.key], []).append(name)
        for first, names in between.items():
            maker = nodes[first]
            if first in only_cpu or works[maker.key].free or works[node.key].free:
                continue
            if not may_fuse(maker, node):
                continue
            before, after = find(first), find(i)
            joined = before != after
            if joined and anchored[before] and anchored[after]:
                continue
            root[after], anchored[before] = before, anchored[before] or anchored[after]
            kept = sum(_unmoved_nbytes(graph, node, name, sizes) for name in names)
            saved = costs.fused_ns(kept, profile) + (profile.gpu.launch_ns if joined else 0)
            yield Saving(first, i, saved)


def _unmoved_nbytes(graph: Graph, reader: Node, name: str, sizes: Sizes) -> int:
    """Bytes of `name` that need not pass through memory if `reader` is fused to its producer."""
    if costs.reads_partly(reader, name):
        return 0
    alone = len(graph.consumers[name]) == 1 and not graph.is_output(name)
    return sizes.gpu_nbytes(name) * (2 if alone else 1)


class _Network:
    """The flow network: edges of one pair of vertices are added up, pinned nodes are the sink."""

    GPU = -1
    CPU = -2

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.edges: dict[tuple[int, int], int | None] = {}
        self.offset = 0
        self._next = len(model.nodes)

    def vertex(self, node: int | None) -> int:
        """The vertex of a node id; None is the host."""
        return self.CPU if node is None or node in self.model.only_cpu else node

    def helper(self) -> int:
        """A new vertex."""
        self._next += 1
        return self._next

    def add(self, start: int, end: int, price: int | None) -> None:
        """Pays `price` (None: without limit) if `start` is on the GPU side and `end` is not."""
        if start == end or start == self.CPU or price == 0:
            return
        before = self.edges.get((start, end), 0)
        self.edges[start, end] = None if price is None or before is None else before + price

    def build(self) -> None:
        model = self.model
        gpu_ns = list(model.gpu_ns)
        for saving in model.savings:
            gpu_ns[saving.first] -= saving.saved_ns
            self.add(self.vertex(saving.first), self.vertex(saving.second), saving.saved_ns)
        self.offset += model.call_ns
        submit = self.helper()
        self.add(submit, self.CPU, model.submit_ns)
        for i in range(len(model.nodes)):
            least = min(gpu_ns[i], model.cpu_ns[i])
            self.offset += least
            self.add(self.GPU, self.vertex(i), model.cpu_ns[i] - least)
            self.add(self.vertex(i), self.CPU, gpu_ns[i] - least)
            if i not in model.free:
                self.add(self.vertex(i), submit, None)
        for transfer in model.transfers:
            self.add_transfer(transfer)

    def add_transfer(self, transfer: Transfer) -> None:
        maker = self.vertex(transfer.producer)
        if transfer.gpu_readers:
            upload = self.helper()
            self.add(upload, maker, transfer.upload_ns)
            for reader in transfer.gpu_readers:
                self.add(self.vertex(reader), upload, None)
        if maker != self.CPU and (transfer.returned or transfer.cpu_readers):
            download = self.helper()
            self.add(maker, download, transfer.readback_ns)
            if transfer.returned:
                self.add(download, self.CPU, None)
            waited = self.helper()
            self.add(maker, waited, transfer.wait_ns)
            for reader in transfer.cpu_readers:
                self.add(download, self.vertex(reader), None)
                self.add(waited, self.vertex(reader), None)


def minimum_cut(model: CostModel) -> frozenset[int]:
    """The ids of the nodes on the GPU in a cheapest placement."""
    import networkx as nx  # costs 0.2 s, and forced placements do without

    network = _Network(model)
    network.build()
    graph: Any = nx.DiGraph()
    graph.add_nodes_from((_Network.GPU, _Network.CPU))
    for (start, end), price in network.edges.items():
        graph.add_edge(start, end, **({} if price is None else {"capacity": price}))
    weight, (gpu_side, _) = nx.minimum_cut(
        graph,
        _Network.GPU,
        _Network.CPU,
        flow_func=nx.algorithms.flow.preflow_push,
    )
    movable = range(len(model.nodes))
    placed = {i for i in movable if i in gpu_side or i not in graph}
    chosen = frozenset(placed) - model.only_cpu
    if weight + network.offset != model.total_ns(chosen):
        raise PlanError(
            f"the cut weighs {weight + network.offset} ns, but its placement costs "
            f"{model.total_ns(chosen)} ns"
        )
    return chosen
