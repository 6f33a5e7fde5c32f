"""Tensors of ONNX files as arrays, external ones memory-mapped; models without their weights.

The tools of the `onnx` package serialise whole models, which is slow for large weights and fails
over 2 GB. `detach` makes a copy that holds small tensors only: each large one is an external tensor
whose location is its number, and its array is in a list.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from engine import dtypes
from engine.errors import ModelError
from engine.ir import Array

SMALL_NBYTES = 4096
_NONE: Mapping[int, Array] = MappingProxyType({})
_BITS = {"uint4": 4, "int4": 4, "float4e2m1": 4, "uint2": 2, "int2": 2}


class MappedFile:
    """A file of weights in memory, which must stay as it is: what is cut off can't be read.

    Attributes:
        data: its bytes, mapped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._handle = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._handle)
            self._state = self._now()
            empty = self._state[0] == 0
            self.data: Array = np.empty(0, np.uint8) if empty else np.memmap(file, np.uint8, "r")

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self._handle)
        return state.st_size, state.st_mtime_ns

    def check(self) -> None:
        """Raises: ModelError if the file was written to since it was opened.

        A file that another one has taken the place of is still there.
        """
        if self._now() != self._state:
            raise ModelError(
                f"{str(self._path)!r} was written to while a session used it: load the model anew"
            )


class Weights:
    """Where the data of a model's tensors lie.

    Args:
        model: path of the model file, or None for a model in memory, which has no external data.

        raw: `raw_data` of initializers of the main graph that the model was read without, as
            uint8 by their number.

    Attributes:
        detached: large tensors, which the model without them refers to by their numbers.
        files: those of external data that were opened.
    """

    def __init__(self, model: Path | None, raw: Mapping[int, Array] | None = None) -> None:
        self.raw = raw or {}
        self.detached: list[Array] = []
        self.files: list[MappedFile] = []
        self._folder = None if model is None else model.parent
        self._roots = () if model is None else (model.parent.resolve(), model.resolve().parent)
        self._mapped: dict[Path, Array] = {}

    def array(self, tensor: TensorProto) -> Array:
        """The content of a tensor of a model without its large ones: see `read`."""
        if tensor.data_location == TensorProto.EXTERNAL:
            return self.detached[int(_entries(tensor)["location"])]
        return self.read(tensor)

    def read(self, tensor: TensorProto, raw: Array | None = None) -> Array:
        """The content of a tensor: read-only, of its dims and `DType.numpy`.

        Args:
            raw: its `raw_data`, if it was read without.

        Raises: ModelError if the data are missing, outside the model's folder, or of another length
            than the dims say.
        """
        what = f"tensor {tensor.name!r}" if tensor.name else "an unnamed tensor"
        try:
            dtype = dtypes.from_code(tensor.data_type)
        except KeyError:
            raise ModelError(f"{what} has the unknown element type {tensor.data_type}") from None
        if any(d < 0 for d in tensor.dims):
            raise ModelError(f"{what} has negative dims {list(tensor.dims)}")
        if tensor.HasField("segment"):
            raise ModelError(f"{what} is stored in segments, which ONNX does not define")
        shape = tuple(tensor.dims)
        if tensor.data_location == TensorProto.EXTERNAL:
            data = self._external(what, tensor, _nbytes(dtype, shape))
            return _from_bytes(what, dtype, shape, data)
        if dtype is dtypes.STRING:
            return _strings(what, shape, tensor)
        if raw is None and tensor.HasField("raw_data"):
            raw = np.frombuffer(tensor.raw_data, np.uint8)
        if raw is not None:
            return _from_bytes(what, dtype, shape, raw)
        try:
            array = np.ascontiguousarray(numpy_helper.to_array(tensor)).reshape(shape)
        except (ValueError, TypeError) as error:
            raise ModelError(f"{what} {list(shape)} {dtype.name}: {error}") from None
        array.flags.writeable = False
        return array.astype(dtype.numpy, copy=False)

    def _map(self, path: Path) -> Array:
        if path not in self._mapped:
            self.files.append(MappedFile(path))
            self._mapped[path] = self.files[-1].data
        return self._mapped[path]

    def _external(self, what: str, tensor: TensorProto, needed: int) -> Array:
        """The bytes that a tensor names in a file; `needed` of them if it does not say how many."""
        entries = _entries(tensor)
        location = entries.get("location", "")
        if self._folder is None:
            raise ModelError(
                f"{what} lies in the file {location!r}, but the model came without a folder: "
                "load it by its path"
            )
        if "\0" in location:
            raise ModelError(f"{what} refers to {location!r}, which no file can be called")
        path = (self._folder / location).resolve()
        inside = any(path.is_relative_to(root) for root in self._roots)
        if not location or os.path.isabs(location) or not inside:
            raise ModelError(
                f"{what} refers to {location!r}, outside the model's folder {str(self._folder)!r}"
            )
        if not path.is_file():
            raise ModelError(f"{what} lies in {location!r}, and there is no such file")
        data = self._map(path)
        offset = _integer(what, entries, "offset", 0)
        length = _integer(what, entries, "length", min(needed, data.size - offset))
        if offset + length > data.size or length < 0:
            raise ModelError(
                f"{what}: bytes {offset} to {offset + length} of {location!r} are asked for, it "
                f"has {data.size}"
            )
        return data[offset : offset + length]

    def dense(self, sparse: onnx.SparseTensorProto) -> Array:
        """A sparse tensor as a dense array. Raises: ModelError if indices or lengths don't fit."""
        values, indices = self.read(sparse.values), self.read(sparse.indices)
        shape = tuple(sparse.dims)
        name = sparse.values.name
        dense = np.zeros(shape, values.dtype)
        try:
            if indices.ndim == 2:
                if len(indices) and (
                    indices.min() < 0 or indices.shape != (len(values), len(shape))
                ):
                    raise ValueError("a pair of index and value is incomplete")
                dense[tuple(indices.T)] = values
            else:
                if len(indices) and indices.min() < 0:
                    raise ValueError("an index is negative")
                dense.reshape(-1)[indices] = values
        except (ValueError, IndexError) as error:
            raise ModelError(f"sparse tensor {name!r} {list(shape)}: {error}") from None
        dense.flags.writeable = False
        return dense


def _entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _integer(what: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ModelError(f"{what}: the {key} {text!r} of its external data is no size")
    return int(text)


def _bits(dtype: dtypes.DType) -> int:
    return _BITS.get(dtype.name, 8 * dtype.nbytes)


def _nbytes(dtype: dtypes.DType, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor takes in a file."""
    return int(-(-np.prod(shape, dtype=object) * _bits(dtype) // 8))


def _from_bytes(what: str, dtype: dtypes.DType, shape: tuple[int, ...], data: Array) -> Array:
    """A tensor's raw bytes (little-endian, sub-byte types packed) as an array of its type."""
    if dtype is dtypes.STRING:
        raise ModelError(f"{what}: strings can't be stored as raw data")
    needed = _nbytes(dtype, shape)
    if data.size != needed:
        raise ModelError(
            f"{what} {dtype.name}{list(shape)} needs {needed} bytes of data and has {data.size}"
        )
    if _bits(dtype) == 8 * dtype.nbytes:
        return data.view(dtype.numpy).reshape(shape)
    raw = TensorProto(data_type=dtype.code, dims=shape, raw_data=data.tobytes())
    unpacked = numpy_helper.to_array(raw)
    unpacked.flags.writeable = False
    return unpacked


def _strings(what: str, shape: tuple[int, ...], tensor: TensorProto) -> Array:
    array = np.empty(len(tensor.string_data), object)
    array[:] = [s.decode("utf-8", "surrogateescape") for s in tensor.string_data]
    if array.size != int(np.prod(shape, dtype=object)):
        raise ModelError(f"{what} string{list(shape)} has {array.size} elements")
    return array.reshape(shape)


def detach(model: ModelProto, weights: Weights) -> ModelProto:
    """A copy of `model` without its large tensors, which go to `weights.detached`.

    Sparse initializers become dense ones. Raises: ModelError as `Weights.array` does.
    """
    light = ModelProto()
    for descriptor, value in model.ListFields():
        if descriptor.name == "graph":
            _detach_graph(model.graph, light.graph, weights, weights.raw)
        elif descriptor.name == "functions":
            for function in model.functions:
                copy = light.functions.add()
                _copy_fields(function, copy, skip=("node",))
                for node in function.node:
                    _detach_node(node, copy.node.add(), weights)
        elif descriptor.name not in ("training_info", "configuration"):
            _copy_field(light, descriptor.name, value)
    return light


def _copy_fields(source: Any, target: Any, skip: tuple[str, ...]) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name not in skip:
            _copy_field(target, descriptor.name, value)


def _copy_field(target: Any, name: str, value: Any) -> None:
    field = getattr(target, name)
    if hasattr(field, "extend"):
        field.extend(value)
    elif hasattr(field, "CopyFrom"):
        field.CopyFrom(value)
    else:
        setattr(target, name, value)


def _detach_graph(
    graph: GraphProto, light: GraphProto, weights: Weights, raw: Mapping[int, Array] = _NONE
) -> None:
    _copy_fields(
        graph,
        light,
        skip=("node", "initializer", "sparse_initializer", "value_info", "quantization_annotation"),
    )
    for node in graph.node:
        _detach_node(node, light.node.add(), weights)
    for number, tensor in enumerate(graph.initializer):
        _detach_tensor(tensor, light.initializer.add(), weights, raw.get(number))
    for sparse in graph.sparse_initializer:
        array = weights.dense(sparse)
        _attach(
            array, sparse.values.name, sparse.values.data_type, light.initializer.add(), weights
        )


def _detach_node(node: NodeProto, light: NodeProto, weights: Weights) -> None:
    heavy = {
        AttributeProto.TENSOR,
        AttributeProto.TENSORS,
        AttributeProto.SPARSE_TENSOR,
        AttributeProto.GRAPH,
        AttributeProto.GRAPHS,
    }
    if not any(a.type in heavy for a in node.attribute):
        light.CopyFrom(node)
        return
    _copy_fields(node, light, skip=("attribute",))
    for attribute in node.attribute:
        copy = light.attribute.add()
        _copy_fields(attribute, copy, skip=("t", "g", "tensors", "graphs", "sparse_tensor"))
        if attribute.HasField("t"):
            _detach_tensor(attribute.t, copy.t, weights)
        if attribute.HasField("g"):
            _detach_graph(attribute.g, copy.g, weights)
        for tensor in attribute.tensors:
            _detach_tensor(tensor, copy.tensors.add(), weights)
        for graph in attribute.graphs:
            _detach_graph(graph, copy.graphs.add(), weights)
        if attribute.HasField("sparse_tensor"):
            sparse = attribute.sparse_tensor
            array = weights.dense(sparse)
            copy.type = AttributeProto.TENSOR
            copy.name = "value" if node.op_type == "Constant" else attribute.name
            _attach(array, sparse.values.name, sparse.values.data_type, copy.t, weights)


def _detach_tensor(
    tensor: TensorProto, light: TensorProto, weights: Weights, raw: Array | None = None
) -> None:
    array = weights.read(tensor, raw)
    if array.dtype == object and tensor.data_location != TensorProto.EXTERNAL:
        light.CopyFrom(tensor)
    else:
        _attach(array, tensor.name, tensor.data_type, light, weights)


def _attach(array: Array, name: str, code: int, light: TensorProto, weights: Weights) -> None:
    if array.nbytes <= SMALL_NBYTES:
        light.CopyFrom(numpy_helper.from_array(np.array(array), name))
        return
    light.name, light.data_type = name, code
    light.dims.extend(array.shape)
    light.data_location = TensorProto.EXTERNAL
    entry = light.external_data.add()
    entry.key, entry.value = "location", str(len(weights.detached))
    weights.detached.append(array)
