"""Feeds: the inputs of a call: whether they are valid, and what they say of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.dims import evaluate, substitute, symbol, symbols_of
from engine.dtypes import INT64, STRING, from_numpy
from engine.errors import InputError
from engine.ir import Array, Graph, OptionalType, SequenceType, TensorType, Value, ValueType
from engine.runtime.device import Device
from engine.runtime.values import DeviceValue

Feed = Array | DeviceValue | list[Any] | None


def held(feeds: Mapping[str, Any]) -> frozenset[str]:
    """The int64 inputs that are on the device already."""
    given = (n for n, fed in feeds.items() if isinstance(fed, DeviceValue))
    return frozenset(n for n in given if feeds[n].dtype is INT64)


def kind(value: Any) -> tuple[Any, ...]:
    """What of an input decides about the plan, sizes left out: dtype and rank."""
    if value is None or isinstance(value, list):
        return (type(value).__name__,)
    if isinstance(value, DeviceValue):
        return (value.dtype.name, len(value.shape))
    return (from_numpy(np.asarray(value).dtype).name, np.ndim(value))


def typed(graph: Graph, feeds: Mapping[str, Any]) -> Graph:
    """The graph for a kind of call: inputs of open type get one, fed initializers are none."""
    changed: dict[str, Value] = {}
    tensors = [graph.tensor(n) for n in graph.inputs]
    taken = {s for t in tensors if t is not None for d in t.shape or () for s in symbols_of(d)}
    for name in graph.inputs:
        value, fed = graph.values[name], feeds.get(name)
        if fed is None or isinstance(fed, list):
            continue
        if value.constant is not None:
            changed[name] = value = value.replace(constant=None, dims=None)
        if value.tensor is not None and value.tensor.shape is not None:
            continue
        shape = tuple(fed.shape if isinstance(fed, DeviceValue) else np.shape(fed))
        dtype = fed.dtype if isinstance(fed, DeviceValue) else from_numpy(np.asarray(fed).dtype)
        names = (f"{name}_{axis}" for axis in range(len(shape)))
        dims = tuple(symbol(f"{n}'" if n in taken else n) for n in names)
        changed[name] = value.replace(type=TensorType(dtype, dims))
    return graph.replace(values={**graph.values, **changed}) if changed else graph


def with_contents(graph: Graph, known: Mapping[str, Array]) -> Graph:
    """The graph with some of its inputs as constants, which it is told."""
    if not known:
        return graph
    values = dict(graph.values)
    for name, array in known.items():
        content = array.copy()
        content.flags.writeable = False
        kind = TensorType(from_numpy(content.dtype), content.shape)
        values[name] = values[name].replace(type=kind, constant=content, dims=None)
    inputs = tuple(n for n in graph.inputs if n not in known)
    return graph.replace(values=values, inputs=inputs, told=frozenset(known))


def specialised(graph: Graph, binding: Mapping[str, int]) -> Graph:
    """The graph with every input size fixed to what `binding` says."""
    changed = {}
    for name in graph.inputs:
        tensor = graph.tensor(name)
        if tensor is not None and tensor.shape is not None:
            shape = tuple(substitute(d, binding) for d in tensor.shape)
            changed[name] = graph.values[name].replace(type=TensorType(tensor.dtype, shape))
    return graph.replace(values={**graph.values, **changed})


def bind_inputs(
    graph: Graph, feeds: Mapping[str, Any], around: Mapping[str, int]
) -> dict[str, int]:
    """Symbol to size, read off the shapes of the inputs; those of `around` are known already.

    Raises: InputError if a size contradicts the model, or another input.
    """
    binding = dict(around)
    for name in graph.inputs:
        tensor, fed = graph.tensor(name), feeds.get(name)
        if tensor is None or tensor.shape is None or fed is None or isinstance(fed, list):
            continue
        shape = fed.shape if isinstance(fed, DeviceValue) else np.shape(fed)
        if len(shape) != len(tensor.shape):
            raise InputError(
                f"input {name!r} has rank {len(shape)} (shape {tuple(shape)}); expected {tensor}"
            )
        for axis, (dim, size) in enumerate(zip(tensor.shape, shape, strict=True)):
            if str(dim) in symbols_of(dim):
                binding.setdefault(str(dim), int(size))
            expected = evaluate(dim, binding)
            if expected != size:
                raise InputError(
                    f"input {name!r} has size {size} on axis {axis}; expected {expected} of "
                    f"{tensor}"
                )
    return binding


def has_static_inputs(graph: Graph) -> bool:
    """Whether all sizes of the inputs are numbers."""
    tensors = [graph.tensor(n) for n in graph.inputs]
    return all(t is not None and t.static_shape is not None for t in tensors)


def stand_ins(graph: Graph) -> dict[str, Any]:
    """Inputs of zeros, open sizes 1: enough to make a plan."""
    feeds: dict[str, Any] = {}
    for name in graph.inputs:
        if graph.constant(name) is not None:
            continue
        tensor = graph.tensor(name)
        if tensor is None:
            feeds[name] = [] if isinstance(graph.values[name].type, SequenceType) else None
            continue
        dims = tensor.shape or ()
        sizes = [evaluate(d, dict.fromkeys(symbols_of(d), 1)) for d in dims]
        feeds[name] = np.zeros(sizes, tensor.dtype.numpy)
    return feeds


def check_feed(name: str, type_: ValueType | None, value: Any, device: Device | None) -> Feed:
    """`value` as the runner takes it. Raises: InputError if it is of another type."""
    if isinstance(type_, OptionalType) and value is None:
        return None
    if isinstance(type_, OptionalType):
        return check_feed(name, type_.element, value, device)
    if isinstance(type_, SequenceType):
        if not isinstance(value, (list, tuple)):
            raise InputError(f"input {name!r} is a {type(value).__name__}; expected a list")
        checked = [check_feed(name, type_.element, v, device) for v in value]
        # copies, as a result may be an item, and belongs to the caller
        return [v.numpy() if isinstance(v, DeviceValue) else np.array(v) for v in checked]
    if isinstance(value, DeviceValue):
        value.device.require()
        if device is None:
            return value.numpy()
        if value.device is not device:
            raise InputError(f"input {name!r} lies on another device ({value.device.info.title})")
        found = value.dtype
    elif isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
        if isinstance(type_, TensorType) and type_.shape == () and value.size == 1:
            value = value.reshape(())
        try:
            found = from_numpy(value.dtype)
        except KeyError:
            raise InputError(f"input {name!r} has dtype {value.dtype}; expected {type_}") from None
        if found is STRING:
            value = _texts(name, value)
        elif not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
    else:
        raise InputError(
            f"input {name!r} is a {type(value).__name__}; expected a NumPy array of {type_}"
        )
    if isinstance(type_, TensorType) and found is not type_.dtype:
        raise InputError(f"input {name!r} has dtype {found.name}; expected {type_}")
    return value  # type: ignore[no-any-return]


def _texts(name: str, array: Array) -> Array:
    """Strings as objects, as operators take them. Raises: InputError for bytes that are no text."""
    texts = np.empty(array.size, object)
    try:
        texts[:] = [
            item.decode() if isinstance(item, bytes) else str(item)
            for item in array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError as error:
        raise InputError(f"input {name!r} holds bytes that are no UTF-8: {error}") from error
    return texts.reshape(array.shape)
