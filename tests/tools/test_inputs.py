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
    (tmp_path / "text.npy").write_text("1, 2, 3")
    with InferenceSession(MIXED, device="cpu") as session:
        for name in ("objects.npy", "absent.npy"):
            with pytest.raises(InputError, match=f"'image': cannot read .*{name}"):
                make_inputs(session, {"image": str(tmp_path / name)}, {})
        for name, why in (("objects", "strings are saved as a `<U` array"), ("text", "numpy.save")):
            with pytest.raises(InputError, match=why) as caught:
                make_inputs(session, {"image": str(tmp_path / f"{name}.npy")}, {})
            assert "allow_pickle" not in str(caught.value)


def test_files_without_one_array_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "several.npz", a=np.ones(2), b=np.ones(2))
    with InferenceSession(MIXED, device="cpu") as session:
        for name, why in (
            ("empty.npy", "numpy.save did not write it"),
            ("several.npz", "several arrays"),
        ):
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
        with pytest.raises(InputError, match="not drawn: give it as --input words=FILE"):
            make_inputs(session, {}, {})


def test_where_only_shapes_count_something_stands_for_what_is_not_drawn() -> None:
    text = parse(
        "g (string[n,2] a, seq(float[n]) b, optional(float[n]) c) => (string[n,2] y)"
        "{ y = Identity(a) }"
    )
    with InferenceSession(text, device="cpu") as session:
        feeds = make_inputs(session, {}, {"n": "3"}, values=False)
        assert feeds["a"].shape == (3, 2) and feeds["a"].dtype.kind == "U"
        assert feeds["b"] == [] and feeds["c"] is None
        assert session.explain(feeds).binding["n"] == 3
    assert describe(feeds) == "a <U1[3, 2], b, c"


def test_sizes_are_those_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "image.npy", np.zeros((2, 3, 5, 7), np.float32))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    given = {"image": "~/image.npy"}
    with InferenceSession(MIXED, device="cpu") as session:
        feeds = make_inputs(session, given, {"t": "4", "h": "5"})
        assert feeds["image"].shape == (2, 3, 5, 7) and feeds["ids"].shape == (2, 4)
        message = "--dim n=3, but n is 2 in ~/image.npy, the input 'image'"
        with pytest.raises(InputError, match=message):
            make_inputs(session, given, {"n": "3"})


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=c=d"], "--dim") == {"a": "1", "b": "c=d"}
    for item in ("a", "=1", "a="):
        with pytest.raises(InputError, match="--dim must look like NAME=VALUE"):
            parse_pairs([item], "--dim")
    with pytest.raises(InputError, match="--dim a is given twice, as 1 and as 2"):
        parse_pairs(["a=1", "b=1", "a=2"], "--dim")


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
