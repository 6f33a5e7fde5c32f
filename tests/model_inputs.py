"""Seeded inputs for the real models: drawn text, a vowel-like voice, tones, token ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Array = npt.NDArray[np.generic]
Float32 = npt.NDArray[np.float32]
Feed = dict[str, Array]

LINE = "Hello WGSL 2026"
PAGE_LINES = (
    "Compute shaders",
    "",
    "The quick brown fox jumps over",
    "the lazy dog. Pack my box with",
    "five dozen liquor jugs.",
    "",
    "How vexingly quick daft zebras",
    "jump! Sphinx of black quartz,",
    "judge my vow.",
)
PAGE_ROWS = sum(bool(line) for line in PAGE_LINES)
IMAGENET_MEAN = (103.53, 116.28, 123.675)
IMAGENET_STD = (57.375, 57.12, 58.395)
PYTHON_SOURCE = b'''import os
import sys


def main(argv):
    """Print sorted names."""
    for name in sorted(os.listdir(argv[1])):
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
'''


def random(seed: int) -> np.random.Generator:
    """The only source of chance here."""
    return np.random.default_rng(seed)


def text_picture(text: str, width: int, height: int, size: int, *, centred: bool = True) -> Array:
    """Black `text` on white: [height, width, 3] uint8, in the font that Pillow carries."""
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size)
    where, anchor = (
        ((width / 2, height / 2), "mm") if centred else ((width / 12, height / 16), "la")
    )
    draw.text(where, text, fill="black", font=font, anchor=anchor if centred else None)
    return np.asarray(picture)


def page_picture(width: int, height: int, size: int) -> Array:
    """A page of `PAGE_ROWS` lines: [height, width, 3] uint8."""
    return text_picture("\n".join(PAGE_LINES), width, height, size, centred=False)


def planes(
    picture: Array,
    mean: tuple[float, ...] = (127.5, 127.5, 127.5),
    std: tuple[float, ...] = (127.5, 127.5, 127.5),
) -> Float32:
    """[H, W, 3] RGB bytes as [1, 3, H, W] float32 in BGR order, less `mean`, over `std`."""
    bgr = picture[:, :, ::-1].astype(np.float32)
    scaled = (bgr - np.array(mean, np.float32)) / np.array(std, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def voice(count: int, *, rate: int = 16_000, seed: int = 0) -> Float32:
    """`count` samples of something like a voice: [count] float32 within 0.3.

    A pulse train with a wandering pitch goes through three resonances that change five times a
    second, as those of vowels do.
    """
    chance = random(seed)
    seconds = np.arange(count) / rate
    drift = 3 * np.cumsum(chance.standard_normal(count)) / np.sqrt(count)
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.9 * seconds) + drift
    pulses = np.diff(np.floor(np.cumsum(pitch / rate)), prepend=0)
    source = pulses + 0.01 * chance.standard_normal(count)
    vowels = ((730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (530, 1840, 2480))
    sound = np.zeros(count)
    step = rate // 5
    for index, start in enumerate(range(0, count, step)):
        piece = source[start : start + step]
        turn = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * step))
        response = np.zeros_like(turn)
        for order, formant in enumerate(vowels[index % len(vowels)]):
            radius = np.exp(-np.pi * (60 + 40 * order) / rate)
            double_cosine = 2 * radius * np.cos(2 * np.pi * formant / rate)
            response += 1 / (1 - double_cosine * turn + (radius * turn) ** 2) / (order + 1)
        ringing = np.fft.irfft(np.fft.rfft(piece, 2 * step) * response, 2 * step)
        sound[start : start + step] += ringing[: len(piece)]
    sound *= 0.15 + 0.85 * np.abs(np.sin(2 * np.pi * 2.5 * seconds))
    return (0.3 * sound / np.abs(sound).max()).astype(np.float32)


def tone(count: int, hertz: float, rate: int) -> Float32:
    """[count] float32 of a sine."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(count) / rate)).astype(np.float32)


def noise(seed: int, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Float32:
    """Normal noise, float32."""
    return (random(seed).standard_normal(shape) * scale + shift).astype(np.float32)


def tokens(*ids: int) -> Feed:
    """The three inputs of a BERT for one sentence, each [1, len(ids)] int64."""
    row = np.array([ids], np.int64)
    return {
        "input_ids": row,
        "attention_mask": np.ones_like(row),
        "token_type_ids": np.zeros_like(row),
    }


def unit_page(width: int, height: int, size: int) -> Float32:
    """[1, height, width, 3] float32 in about [-1, 1], as the face detectors take pictures."""
    return (page_picture(width, height, size).astype(np.float32)[None] - 127.5) / np.float32(128)


def speech_chunk() -> Float32:
    """[1, 576] float32: 32 ms of voice at 16 kHz after its 4 ms of context."""
    return voice(16_000)[None, 5_800:6_376]


def sleep_spindle() -> Feed:
    """30 s of EEG at 250 Hz with a 13 Hz burst in the middle, and a noise spectrogram."""
    seconds = np.arange(7_500) / 250
    burst = 2 * np.sin(2 * np.pi * 13 * seconds) * (np.abs(seconds - 15) < 1)
    return {
        "raw_signal": (random(1).standard_normal(7_500) + burst)[None, None].astype(np.float32),
        "spectrogram": np.abs(noise(2, 1, 15, 7_500)),
    }


def file_bytes() -> Array:
    """[1, 2048] int32: the first and the last 1024 bytes of a Python file."""
    content = (PYTHON_SOURCE * 12).strip()
    return np.array([[*content[:1024], *content[-1024:]]], np.int32)
