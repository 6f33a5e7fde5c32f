"""ONNX models to `Graph`: functions inlined, opset pinned, names unique, weights memory-mapped."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from engine.errors import ModelError
from engine.importer.checks import check
from engine.importer.opsets import opsets, to_pinned
from engine.importer.reader import Reader
from engine.importer.tensors import MappedFile, Weights, detach
from engine.importer.types import Declared, declared
from engine.importer.wire import WireError, without_weights
from engine.ir import Array, Graph
from engine.progress import tell
from engine.records import dataclass

__all__ = ["Declared", "Model", "load_model"]


@dataclass(frozen=True)
class Model:
    """A loaded model: its graph, and what the file says beside it.

    Attributes:
        graph: in the pinned opset. Inputs have types, other values none yet but constants.
        inputs, outputs: as declared; `inputs` without the optional ones (which have initializers).
        overridable: inputs that have an initializer as their default.
        opset: domain ("" is ai.onnx) to version, as the file has it.
        metadata: the file's own key-value pairs.
        files: other files that weights lie in.
    """

    graph: Graph
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    overridable: tuple[Declared, ...] = ()
    opset: Mapping[str, int] = field(default_factory=dict)
    ir_version: int = 0
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    version: int = 0
    description: str = ""
    graph_name: str = ""
    graph_description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: tuple[MappedFile, ...] = ()


def load_model(
    model: str | os.PathLike[str] | bytes | ModelProto, *, for_gpu: bool = False
) -> Model:
    """Reads an ONNX model of any IR version, of opsets 6 to 28, or an older one that converts.

    Args:
        model: a path (external data are looked up beside it, and memory-mapped), the bytes of a
            model, or a `ModelProto`, which is not changed.
        for_gpu: replace operators that have no kernel by their function bodies, where the parts
            have kernels.

    Raises: ModelError, with what is wrong, if it is malformed. FileNotFoundError if there is no
        such file.
    """
    tell("reading the model")
    path, raw = None, dict[int, Array]()
    if isinstance(model, ModelProto):
        proto = model
    elif isinstance(model, (bytes, bytearray, memoryview)):
        proto, raw = _read(io.BytesIO(bytes(model)), "what was given as bytes")
    elif not isinstance(model, (str, os.PathLike)):
        raise ModelError(f"a model is a path, bytes or a ModelProto, not a {type(model).__name__}")
    else:
        path = Path(model)
        if path.suffix in TEXT_FORMS:
            proto = _read_text(path)
        else:
            with path.open("rb") as file:
                proto, raw = _read(file, str(path))
    try:
        return _load(proto, Weights(path, raw), path, for_gpu)
    except UnicodeDecodeError as error:
        raise ModelError(f"the model is damaged: a name in it is no UTF-8 text: {error}") from None


def _load(proto: ModelProto, weights: Weights, path: Path | None, for_gpu: bool) -> Model:
    if not proto.HasField("graph"):
        raise ModelError(f"{path or 'the model'} has no graph: it is empty, or no ONNX model")
    light = detach(proto, weights)
    check(light, weights)
    declared_opsets = opsets(light)
    names = [v.name for v in light.graph.input]
    optional = {t.name for t in light.graph.initializer}
    reader = Reader(weights, light.graph)
    inputs = tuple(declared(v, reader.fresh_dims) for v in light.graph.input)
    outputs = tuple(declared(v, reader.fresh_dims) for v in light.graph.output)
    pinned = to_pinned(light, for_gpu)
    graph = reader.read(pinned, names)
    return Model(
        graph=graph,
        inputs=tuple(d for d in inputs if d.name not in optional),
        outputs=outputs,
        overridable=tuple(d for d in inputs if d.name in optional),
        opset=declared_opsets,
        ir_version=proto.ir_version,
        producer_name=proto.producer_name,
        producer_version=proto.producer_version,
        domain=proto.domain,
        version=proto.model_version,
        description=proto.doc_string,
        graph_name=proto.graph.name,
        graph_description=proto.graph.doc_string,
        metadata={p.key: p.value for p in proto.metadata_props},
        files=tuple(weights.files),
    )


def _read_text(path: Path) -> ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:
        raise ModelError(f"{path} can't be read as a model in text form: {error}") from None


def _read(file: BinaryIO, what: str) -> tuple[ModelProto, dict[int, Array]]:
    """The model, and raw data of its initializers that it lacks; see `wire`."""
    try:
        light, raw = without_weights(file)
        return ModelProto.FromString(light), raw
    except (WireError, DecodeError):
        file.seek(0)
        return _parse(file.read(), what), {}  # says what is wrong


TEXT_FORMS = (".onnxtxt", ".textproto", ".prototxt", ".pbtxt", ".json", ".onnxjson")
"""Suffixes of models that are no protobuf messages."""
OTHER_KINDS = (
    (b"version https://git-lfs", "a pointer of Git LFS; `git lfs pull` fetches the file"),
    (b"<", "a page of text, such as a refused download leaves"),
    (b"\x1f\x8b", "compressed by gzip; unpack it first"),
    (b"PK\x03\x04", "a ZIP archive; unpack it, or export the model in it to ONNX"),
    (b"\x89HDF", "an HDF5 file, as Keras writes; export the model to ONNX"),
)
"""How files begin that are taken for models, and what they are."""


def _parse(data: bytes, what: str) -> ModelProto:
    try:
        proto: ModelProto = ModelProto.FromString(data)
        return proto
    except DecodeError:
        start = data[:64].lstrip()
        kind = next((k for begin, k in OTHER_KINDS if start.startswith(begin)), None)
        if kind is not None:
            raise ModelError(f"{what} is no ONNX model but {kind}") from None
        raise ModelError(
            f"{what} is no ONNX model: the protobuf is damaged or truncated ({len(data)} bytes)"
        ) from None
