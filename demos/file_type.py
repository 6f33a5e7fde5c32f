"""Tells what type of file something is from its bytes alone, as `magika` was trained to.

usage: file_type.py [FILE ...] [--device auto|gpu|cpu]

Without FILE a few are made on the spot.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from _models import FILE_TYPE, FILE_TYPE_CONFIG, FetchError, fetch
from PIL import Image
from rich.console import Console
from rich.table import Table

import engine

TOO_SHORT = "too short to tell"


def features(content: bytes, config: dict[str, int]) -> np.ndarray:
    """[2048] int32: the first and the last bytes less white space, padded inwards."""
    block, padding = config["block_size"], config["padding_token"]
    head = content[:block].lstrip()[: config["beg_size"]]
    tail = content[-block:].rstrip()[-config["end_size"] :]
    row = np.full(config["beg_size"] + config["end_size"], padding, np.int32)
    row[: len(head)] = np.frombuffer(head, np.uint8)
    row[len(row) - len(tail) :] = np.frombuffer(tail, np.uint8)
    return row


def make_files(folder: Path) -> list[Path]:
    """A few files whose names say nothing about them."""
    picture, archive = io.BytesIO(), io.BytesIO()
    Image.effect_noise((64, 64), 50).save(picture, "PNG")
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("notes.txt", "buy milk\n" * 50)
    contents = {
        "a": Path(__file__).read_bytes(),
        "b": picture.getvalue(),
        "c": archive.getvalue(),
        "d": b"<!doctype html>\n<html><body><h1>Hello</h1><p>Some text.</p></body></html>\n",
        "e": json.dumps({"name": "engine", "sizes": list(range(60))}, indent=2).encode(),
        "f": b'#!/bin/sh\nset -eu\nfor f in *.txt; do\n  echo "$f"\n  wc -l < "$f"\ndone\n',
        "g": b"id,name,price\n" + b"".join(b"%d,item %d,%d.50\n" % (i, i, i) for i in range(40)),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="files to look at; made if left out")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    args = parser.parse_args()
    console = Console()
    with Console(stderr=True).status("looking for the model") as status:
        try:
            path, config_path = fetch(
                [FILE_TYPE, FILE_TYPE_CONFIG],
                lambda package: status.update(f"downloading {package}"),
            )
        except FetchError as error:
            console.print(f"The model could not be had: {error}")
            return 1
        status.update("classifying")
        config = json.loads(config_path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            files = args.files or make_files(Path(folder))
            try:
                contents = [file.read_bytes() for file in files]
            except OSError as error:
                parser.error(str(error))
        session = engine.InferenceSession(path, device=args.device)
        batch = np.stack([features(content, config) for content in contents])
        (scores,) = session.run(None, {session.get_inputs()[0].name: batch})

    console.print(f"Classified on {session.device_name}", highlight=False)
    table = Table("file", "type", "score")
    for file, content, row in zip(files, contents, scores, strict=True):
        best = int(row.argmax())
        sure = len(content) >= config["min_file_size_for_dl"]
        label = config["target_labels_space"][best] if sure else TOO_SHORT
        table.add_row(file.name, label, f"{row[best]:.3f}" if sure else "")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
