"""Reasons in groups: what counts as the same, and in which words."""

from __future__ import annotations

import pytest

from engine.reasons import Entry, group_reasons, names_text, pattern, plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("its kernel does not take int64 ('a')", "its kernel does not take int64"),
        ("its input 1 ('y') is not known when planning", "its input … is not known when planning"),
        ("'x' takes 130.5 MiB, more than 128", "a value takes … MiB, more than …"),
        ("there is no GPU kernel for LSTM-14", "there is no GPU kernel for LSTM-14"),
        ("it needs that 4 divides w, which is not so at w=3", None),
        ("Gelu of 'g' recognised in Div, Erf", "Gelu recognised in Div, Erf"),
        ("alike: the same as 'x': 'a', 'b'", "alike: the same"),
        ("its target is [0, -1, n*2]", "its target is […]"),
    ],
)
def test_patterns_leave_out_names_and_numbers(text: str, expected: str | None) -> None:
    wanted = "it needs that … divides w, which is not so at w=…" if expected is None else expected
    assert plain(text) == wanted
    assert pattern(pattern(text)) == pattern(text)


def entry(key: str, op: str, reason: str) -> Entry:
    return Entry(key, op, key, reason)


def test_groups_are_by_size_and_what_is_only_slower_comes_last() -> None:
    groups = group_reasons(
        [
            entry("a", "Mul", "predicted 1 ms here, 2 ms on the GPU"),
            entry("b", "Add", "predicted 3 ms here, 4 ms on the GPU"),
            entry("c", "Mul", "predicted 1 ms here, 4 ms on the GPU"),
            entry("d", "Erf", "no kernel computes with float64 ('d')"),
            entry("e", "Exp", "no kernel computes with float64 ('e')"),
            entry("f", "Unique", "there is no GPU kernel for Unique-28"),
        ]
    )
    assert [(g.reason, [e.key for e in g.entries], g.faster) for g in groups] == [
        ("no kernel computes with float64", ["d", "e"], False),
        ("there is no GPU kernel for Unique-28", ["f"], False),
        ("predicted to be faster on the CPU", ["a", "b", "c"], True),
    ]
    assert groups[2].ops_text() == "2 Mul, 1 Add"
    assert groups[2].ops_text(1) == "2 Mul and 1 more operators"
    assert groups[2].names_text() == "Mul, Add"


def test_one_reason_is_given_as_it_is() -> None:
    (slow,) = group_reasons([entry("a", "Mul", "predicted 1 ms here")])
    assert slow.reason == "predicted 1 ms here" and slow.faster
    (missing,) = group_reasons([entry(k, "Mul", "its input 1 is not known") for k in "ab"])
    assert missing.reason == "its input 1 is not known" and not missing.faster


def test_long_lists_of_names_end_with_how_many_follow() -> None:
    assert names_text(["a", "b", "c"], 2) == "a, b and 1 more"
    assert names_text(["a", "b"], 2) == "a, b"
