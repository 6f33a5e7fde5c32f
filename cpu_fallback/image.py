"""ImageDecoder, through Pillow, which is optional: the extra `image`."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np

from cpu_fallback.registry import Tensor, cpu_op

_FORMATS = ("RGB", "BGR", "Grayscale")


@cpu_op("ImageDecoder", since=20)
def image_decoder(encoded_stream: Tensor, *, pixel_format: str = "RGB") -> Tensor:
    """The pixels of an encoded image: [bytes] uint8 to [H, W, 3] uint8, or [H, W, 1] in gray.

    Every format that Pillow reads: BMP, JPEG, JPEG 2000, PNG, PNM, TIFF, WebP and others.

    Raises: ImportError if Pillow is missing; ValueError for another pixel format or a stream that
    is no image. Source: ONNX ImageDecoder-20.
    """
    if pixel_format not in _FORMATS:
        raise ValueError(f"pixel_format {pixel_format!r} is none of {', '.join(_FORMATS)}")
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(encoded_stream.astype(np.uint8).tobytes())) as image:
            pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"the {encoded_stream.size} bytes are no image: {error}") from error
    if pixel_format == "Grayscale":
        return pixels[:, :, np.newaxis]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ImportError(
            "decoding images needs Pillow, which is not installed: "
            "pip install 'onnx-wgpu[image]', or decode the image before the model"
        ) from error
