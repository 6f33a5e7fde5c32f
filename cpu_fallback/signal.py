"""Fourier transforms and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu_fallback.numeric import element_type, positive_axis, wide
from cpu_fallback.registry import Tensor, cpu_op


def _complex(x: Tensor) -> Tensor:
    """[..., 1] real or [..., 2] real and imaginary -> [...] complex128."""
    if x.shape[-1] not in (1, 2):
        raise ValueError(f"the last dimension of a signal must be 1 or 2, not {x.shape[-1]}")
    values = x.astype(wide(x.dtype))
    parts = values if x.shape[-1] == 2 else np.concatenate([values, np.zeros_like(values)], -1)
    kind = np.complex128 if values.dtype == np.float64 else np.complex64
    return np.ascontiguousarray(parts).view(kind)[..., 0]


def _pairs(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    return np.stack([x.real, x.imag], axis=-1).astype(dtype)


@cpu_op("DFT", since=20)
def dft(
    x: Tensor,
    dft_length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """Discrete Fourier transform along `axis` (default -2) of `x` [..., 1 or 2].

    onesided: the first half of the spectrum of a real signal (inverse: from it, to a real one).

    Raises: ValueError if the axis is that of the real and imaginary parts, or out of range.
    Source: ONNX DFT-20.
    """
    where = positive_axis(-2 if axis is None else int(axis.reshape(())), x.ndim)
    if where == x.ndim - 1:
        raise ValueError("DFT along the last dimension, which holds real and imaginary parts")
    size = x.shape[where]
    length = 2 * (size - 1) if inverse and onesided else size
    if dft_length is not None:
        length = int(dft_length.reshape(()))
    values = _complex(x)
    if inverse:
        if onesided:
            return np.fft.irfft(values, n=length, axis=where)[..., None].astype(x.dtype)
        return _pairs(np.fft.ifft(values, n=length, axis=where), x.dtype)
    if onesided:
        return _pairs(np.fft.rfft(values.real, n=length, axis=where), x.dtype)
    return _pairs(np.fft.fft(values, n=length, axis=where), x.dtype)


@cpu_op("STFT", since=17)
def stft(
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """Spectra of windowed frames of `signal` [batch, length, 1 or 2]: [batch, frames, bins, 2].

    Raises: ValueError for a window of another length, or onesided of a complex signal.
    Source: ONNX STFT-17.
    """
    if signal.ndim == 2:
        signal = signal[..., None]
    step, total = int(frame_step.reshape(())), signal.shape[1]
    length = total if window is None else window.shape[0]
    if frame_length is not None:
        length = int(frame_length.reshape(()))
    if window is not None and window.shape[0] != length:
        raise ValueError(f"STFT with a window of {window.shape[0]} and frames of {length}")
    if onesided and signal.shape[2] == 2:
        raise ValueError("STFT with onesided = 1 takes a real signal")
    values = _complex(signal)
    frames = np.lib.stride_tricks.sliding_window_view(values, length, axis=1)[:, ::step]
    weighted = frames if window is None else frames * window.astype(wide(signal.dtype))
    if onesided:
        return _pairs(np.fft.rfft(weighted.real, axis=-1), signal.dtype)
    return _pairs(np.fft.fft(weighted, axis=-1), signal.dtype)


def _cosine_window(
    size: Tensor, weights: tuple[float, ...], periodic: int, output_datatype: int
) -> Tensor:
    """Sum of weights[k] * cos(2 pi k n / N), signs alternating."""
    count = int(size.reshape(()))
    period = count if periodic else count - 1
    angle = 2 * np.pi * np.arange(count) / period if period else np.zeros(count)
    total = sum(w * (-1) ** k * np.cos(k * angle) for k, w in enumerate(weights))
    return np.asarray(total).astype(element_type(output_datatype))


@cpu_op("HannWindow", since=17)
def hann_window(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    """Hann window of `size` elements. Source: ONNX HannWindow-17."""
    return _cosine_window(size, (0.5, 0.5), periodic, output_datatype)


@cpu_op("HammingWindow", since=17)
def hamming_window(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    """Hamming window of `size` elements. Source: ONNX HammingWindow-17."""
    return _cosine_window(size, (25 / 46, 21 / 46), periodic, output_datatype)


@cpu_op("BlackmanWindow", since=17)
def blackman_window(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    """Blackman window of `size` elements. Source: ONNX BlackmanWindow-17."""
    return _cosine_window(size, (0.42, 0.5, 0.08), periodic, output_datatype)
