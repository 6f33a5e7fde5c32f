"""The standard `onnx.backend.base.Backend` face of the engine, for conformance suites.

Source: ONNX docs/ImplementingAnOnnxBackend.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.backend.base import Backend, BackendRep

from engine.errors import DeviceError, InputError
from engine.runtime.device import adapters
from engine.runtime.session import InferenceSession

NodePlace = tuple[str, str, str]
"""(op_type, domain, "gpu" or "cpu") of a node of the model."""


class WgpuBackendRep(BackendRep):
    """A model ready to run.

    Args:
        session: the model, its nodes named uniquely.
        nodes: name of each of the model's nodes to its (op_type, domain).
    """

    def __init__(self, session: InferenceSession, nodes: Mapping[str, tuple[str, str]]) -> None:
        self.session = session
        self._nodes = nodes

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in the model's order.

        Args:
            inputs: an array or a NumPy scalar per input that has no initializer, in order; lists
                for sequences and None for empty optionals. Or a mapping of names to these.
            kwargs: accepted for the interface's sake; there are none.

        Raises: InputError if they do not fit the model; EngineError if a node fails.
        """
        if kwargs:
            raise InputError(f"run takes no options, and got {sorted(kwargs)}")
        return tuple(self.session.run(None, self._feeds(inputs)))

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        names = [i.name for i in self.session.get_inputs()]
        return _in_order(inputs, names, "the model")

    def node_placement(self) -> list[NodePlace]:
        """Where each node of the model was computed in the last run, those in bodies included.

        "gpu" is said only of what dispatches computed in full. A node that a pass removed or
        folded, or that was not needed, is not listed.
        """
        places: dict[str, str] = {}
        kinds: dict[str, tuple[str, str]] = {}
        for node, place in self.session.executed():
            for name in node.origin:
                kinds[name] = self._nodes.get(name, (node.op_type, node.domain))
                places[name] = place if places.get(name, "gpu") == "gpu" else "cpu"
        return [(*kinds[name], place) for name, place in places.items()]


class WgpuBackend(Backend):
    """Runs models on "CPU" (NumPy), or "GPU": whatever has a kernel runs there.

    A device may name an adapter by its index: "GPU:1".
    """

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True: what can't run is said by the error of `prepare`."""
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is "CPU", or a GPU that is there."""
        try:
            kind, index = _device(device)
        except DeviceError:
            return False
        return kind == "cpu" or (index or 0) < len(adapters())

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> WgpuBackendRep:
        """A model ready to run.

        Args:
            model: of opset 6 or later; it is not changed.
            device: "CPU", "GPU" or "GPU:index".
            kwargs: further arguments of `InferenceSession`.

        Raises: as `InferenceSession`.
        """
        kind, index = _device(device)
        named, nodes = _with_names(model)
        kwargs.setdefault("device", kind)
        if index is not None:
            kwargs.setdefault("adapter", index)
        return WgpuBackendRep(InferenceSession(named, **kwargs), nodes)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Outputs of `model` for `inputs`; see `prepare` and `WgpuBackendRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Outputs of one node.

        Args:
            node: what to run.
            inputs: an array for each input that is not omitted, in order, or a mapping by name; one
                that the node reads more than once may be given once.
            device: as for `prepare`.
            outputs_info: not needed; types are inferred.
            kwargs: `opset_version` of the node's domain (the newest by default), and those of
                `prepare`.
        """
        opset = kwargs.pop("opset_version", None)
        feeds = _named(node, inputs)
        return cls.run_model(_model_of(node, feeds, opset), feeds, device, **kwargs)


def _device(device: str) -> tuple[str, int | None]:
    """("cpu" or "gpu", index of the adapter). Raises: DeviceError if `device` is none of them."""
    kind, _, index = device.partition(":")
    if kind.upper() == "CPU" and not index:
        return "cpu", None
    if kind.upper() == "GPU" and (not index or index.isdecimal()):
        return "gpu", int(index) if index else None
    raise DeviceError(f"there is no device {device!r}; there are 'CPU', 'GPU' and 'GPU:index'")


def _with_names(model: ModelProto) -> tuple[ModelProto, dict[str, tuple[str, str]]]:
    """A copy of `model` whose nodes have unique names, and what each name stands for."""
    named = ModelProto()
    named.CopyFrom(model)
    nodes: dict[str, tuple[str, str]] = {}
    for node in _nodes(named.graph):
        name, count = node.name or node.op_type, 1
        while name in nodes:
            name = f"{node.name or node.op_type}.{count}"
            count += 1
        node.name = name
        nodes[name] = (node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    return named, nodes


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, those of bodies included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for body in bodies:
                yield from _nodes(body)


def _in_order(inputs: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """Inputs by name, from a sequence of them or a single one."""
    given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if len(given) > len(names):
        raise InputError(f"{len(given)} inputs were given; {what} has {len(names)}: {names}")
    return dict(zip(names, given, strict=False))


def _named(node: NodeProto, inputs: Any) -> dict[str, Any]:
    """Inputs of a node by name; see `WgpuBackend.run_node`."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    names = [n for n in node.input if n]
    if not isinstance(inputs, (list, tuple)) or len(inputs) != len(names):
        names = list(dict.fromkeys(names))
    return _in_order(inputs, names, f"{node.op_type} {node.name!r}")


def _model_of(node: NodeProto, given: Mapping[str, Any], opset: int | None) -> ModelProto:
    """A model of one node, its inputs typed as the given ones."""
    names = list(dict.fromkeys(n for n in node.input if n))
    missing = [n for n in names if n not in given]
    if missing:
        raise InputError(f"{node.op_type} {node.name!r} reads {missing}, which were not given")
    graph = helper.make_graph(
        [node],
        node.op_type,
        [helper.make_value_info(n, _type(given[n])) for n in names],
        [onnx.ValueInfoProto(name=n) for n in node.output if n],
    )
    standard = node.domain in ("", "ai.onnx")
    main = (opset if standard else None) or onnx.defs.onnx_opset_version()
    opsets = [helper.make_opsetid("", main)]
    if not standard:
        newest = max((s.since_version for s in _schemas(node.domain)), default=1)
        opsets.append(helper.make_opsetid(node.domain, opset or newest))
    return helper.make_model(graph, opset_imports=opsets)


def _schemas(domain: str) -> list[Any]:
    return [s for s in onnx.defs.get_all_schemas() if s.domain == domain]


def _type(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        if not value:
            raise InputError("the element type of an empty sequence is unknown")
        return helper.make_sequence_type_proto(_type(value[0]))
    if value is None:
        raise InputError("the type of an empty optional is unknown; omit the input instead")
    code = TensorProto.STRING
    if value.dtype.kind not in "OUS":
        code = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(code, value.shape)


is_compatible = WgpuBackend.is_compatible
prepare = WgpuBackend.prepare
run_model = WgpuBackend.run_model
run_node = WgpuBackend.run_node
supports_device = WgpuBackend.supports_device
