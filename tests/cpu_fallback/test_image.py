"""Decoding of images."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cpu_fallback import registry
from tests.cpu_fallback.node_cases import cases_of, failures

PIXELS = np.random.default_rng(2).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG") -> np.ndarray[Any, Any]:
    stream = io.BytesIO()
    image.save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


def decode(stream: np.ndarray[Any, Any], **attributes: Any) -> Any:
    return registry.run("ImageDecoder", "", 20, attributes, [stream], 1)[0]


@pytest.mark.slow
def test_node_suite() -> None:
    cases = cases_of("ImageDecoder")
    assert len(cases) == 9
    assert failures(cases) == {}


def test_pixel_formats() -> None:
    stream = encoded(Image.fromarray(PIXELS))
    np.testing.assert_array_equal(decode(stream), PIXELS)
    np.testing.assert_array_equal(decode(stream, pixel_format="BGR"), PIXELS[:, :, ::-1])
    gray = decode(stream, pixel_format="Grayscale")
    assert gray.shape == (5, 7, 1)
    np.testing.assert_allclose(gray[:, :, 0], PIXELS @ [0.299, 0.587, 0.114], atol=1)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_other_images_become_three_channels(mode: str) -> None:
    image = Image.fromarray(PIXELS).convert(mode)
    found = decode(encoded(image))
    assert (found.shape, found.dtype) == ((5, 7, 3), np.uint8)
    np.testing.assert_array_equal(found, np.array(image.convert("RGB")))


def test_what_can_not_be_decoded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="12 bytes are no image"):
        decode(np.arange(12, dtype=np.uint8))
    with pytest.raises(ValueError, match="YUV"):
        decode(encoded(Image.fromarray(PIXELS)), pixel_format="YUV")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"onnx-wgpu\[image\]"):
        decode(encoded(Image.fromarray(PIXELS)))
