"""Weights on the device: equal ones share a buffer, and what differs anywhere does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.dtypes import FLOAT32, INT32
from engine.layout import storage_of
from engine.runtime.constants import MAX_PENDING_NBYTES, ConstantStore


class Memory:
    """Stands for a device: keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.settled: list[int] = []

    def buffer(self, role: str, nbytes: int) -> int:
        return len(self.written)

    def write(self, buffer: int, words: Any) -> None:
        self.written.append(np.asarray(words).tobytes())

    def settle(self) -> None:
        self.settled.append(len(self.written))


@pytest.fixture
def store() -> ConstantStore:
    return ConstantStore(Memory())  # type: ignore[arg-type]


F32 = storage_of(FLOAT32, True)


def test_equal_content_is_one_buffer(store: ConstantStore) -> None:
    array = np.arange(5000, dtype=np.float32)
    first = store.buffer(array, F32)
    assert store.buffer(array.copy(), F32) == first == store.buffer(array[::1], F32)
    assert store.nbytes == array.nbytes
    assert store.buffer(array, F32, "twice", lambda a: a * 2) != first
    assert store.buffer(array.copy(), F32, "twice", lambda a: a * 2) == 1


@pytest.mark.parametrize("place", [0, 1, 2499, 4998, 4999])
def test_one_element_makes_a_difference(store: ConstantStore, place: int) -> None:
    array = np.zeros(5000, np.float32)
    other = array.copy()
    other[place] = 1
    assert store.buffer(array, F32) != store.buffer(other, F32)


def test_shape_and_type_make_a_difference(store: ConstantStore) -> None:
    array = np.zeros((2, 3), np.float32)
    found = {store.buffer(array, F32), store.buffer(array.reshape(3, 2), F32)}
    found.add(store.buffer(array.view(np.int32), storage_of(INT32, True)))
    assert len(found) == 3


def test_nothing_at_all(store: ConstantStore) -> None:
    empty = np.zeros((0, 3), np.float32)
    assert store.buffer(empty, F32) == store.buffer(empty.copy(), F32)


def test_few_writes_wait_at_a_time() -> None:
    device = Memory()
    store = ConstantStore(device)  # type: ignore[arg-type]
    for number in range(7):
        array = np.full(MAX_PENDING_NBYTES // 12, number, np.float32)
        store.buffer(array, F32)
        store.buffer(array, F32)
    assert device.settled == [4]
    store.buffer(np.zeros(MAX_PENDING_NBYTES, np.float32), F32)
    assert device.settled == [4, 8]
