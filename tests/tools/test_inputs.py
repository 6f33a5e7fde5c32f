"""Inputs for the command line: files, seeded numbers, guessed sizes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.errors import InputError
from engine.runtime.face import NodeArg
from engine.runtime.session import InferenceSession
from engine.tools.inputs import (
    LENGTH,
    describe,
    guess_dims,
    guess_hint,
    make_inputs,
    parse_pairs,
)
from tests.runtime.models import parse

MIXED = parse(
    """g (float[n,3,h,w] image, int64[n,t] ids, bool[t] mask, double scale, float16[2] half)
    => (float[n,3,h,w] y) { y = Abs(image) }"""
)


def test_every_tensor_type_gets_numbers_of_its_dtype_and_shape() -> None:
    with InferenceSession(MIXED, device="cpu") as session:
        feeds = make_inputs(session, {}, {"h": "8", "w": "5"})
        again = make_inputs(session, {}, {"h": "8", "w": "5"})
        other = make_inputs(session, {}, {"h": "8", "w": "5"}, seed=1)
    assert describe(feeds) == (
        f"image float32[1, 3, 8, 5], ids int64[1, {LENGTH}], mask bool[{LENGTH}], "
        "scale float64[], half float16[2]"
    )
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, again[name])
    assert set(np.unique(feeds["ids"])) == {0, 1}
    assert not np.array_equal(feeds["image"], other["image"])


def test_a_size_that_several_inputs_share_is_the_smallest_guess() -> None:
    args = [
        NodeArg("a", "tensor(float)", ["n", "m"]),
        NodeArg("b", "tensor(float)", ["m", 3]),
        NodeArg("c", "tensor(float)", ["k"]),
        NodeArg("d", "tensor(float)", None),
    ]
    assert guess_dims(args) == {"n": 1, "m": 1, "k": LENGTH}


def test_files_replace_random_numbers(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(1, 3, 2, 1)
    np.save(tmp_path / "image.npy", array)
    with InferenceSession(MIXED, device="cpu") as session:
        feeds = make_inputs(session, {"image": str(tmp_path / "image.npy"), "ids": "random"}, {})
    np.testing.assert_array_equal(feeds["image"], array)


def test_pickled_and_absent_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with InferenceSession(MIXED, device="cpu") as session:
        for name in ("objects.npy", "absent.npy"):
            with pytest.raises(InputError, match=f"'image': cannot read .*{name}"):
                make_inputs(session, {"image": str(tmp_path / name)}, {})


def test_files_without_one_array_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "several.npz", a=np.ones(2), b=np.ones(2))
    with InferenceSession(MIXED, device="cpu") as session:
        for name, why in (("empty.npy", "cannot read"), ("several.npz", "several arrays")):
            with pytest.raises(InputError, match=f"'image': .*{why}"):
                make_inputs(session, {"image": str(tmp_path / name)}, {})


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "int4", "uint64", "complex64"])
def test_types_that_numpy_has_not_are_drawn_too(kind: str) -> None:
    text = parse(f"g ({kind}[n] x) => ({kind}[n] y) {{ y = Identity(x) }}")
    with InferenceSession(text, device="cpu") as session:
        feeds = make_inputs(session, {}, {})
        assert session.run(None, feeds)[0].shape == (LENGTH,)


def test_strings_and_sequences_must_be_given() -> None:
    for kind in ("seq(float[n])", "optional(float[n])"):
        text = parse(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}")
        with InferenceSession(text, device="cpu") as session:
            with pytest.raises(
                InputError, match=r"no \.npy file holds: call the model from Python"
            ):
                make_inputs(session, {}, {})
    text = parse("g (string[n] words) => (string[n] y) { y = Identity(words) }")
    with InferenceSession(text, device="cpu") as session:
        with pytest.raises(InputError, match=r"'words' is a tensor\(string\): give it with"):
            make_inputs(session, {}, {})


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=c=d"], "--dim") == {"a": "1", "b": "c=d"}
    for item in ("a", "=1", "a="):
        with pytest.raises(InputError, match="--dim must look like NAME=VALUE"):
            parse_pairs([item], "--dim")


@pytest.mark.parametrize("size", ["-1", "99999999999999", str(1 << 70), "abc"])
def test_sizes_that_no_array_has(size: str) -> None:
    with InferenceSession(MIXED, device="cpu") as session, pytest.raises(InputError):
        make_inputs(session, {}, {"h": size})


def test_a_hint_names_the_guesses_that_an_error_speaks_of() -> None:
    drawn = {"audio": np.zeros((1, 64), np.float32), "state": np.zeros((2, 1, 8), np.float32)}
    guessed = {"batch": 1, "sequence": 64}
    lines = guess_hint(drawn, guessed, "LSTM: (float32[(sequence + 64) // 128]) has rank 4")
    assert lines.splitlines()[1:] == [
        "  sizes guessed: sequence=64; if the model wants others: --dim sequence=SIZE",
        "  inputs drawn: audio float32[1, 64], state float32[2, 1, 8]; "
        "give real ones as --input audio=FILE.npy",
    ]
    every = guess_hint(drawn, guessed, "subsequence and batch_size do not fit")
    assert "sizes guessed: sequence=64, batch=1;" in every
    assert guess_hint({}, {}, "no guess") == ""
