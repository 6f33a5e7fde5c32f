"""Storage: how values lie in buffers, there and back, with what does not fit refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.dims import evaluate, symbol
from engine.dtypes import DTYPES, FLOAT16, FLOAT32, INT8, INT64, DType, from_name
from engine.errors import PlanError
from engine.ir import Array
from engine.layout import ALIGNMENT, RangeError, Storage, storage_of

ON_GPU = [d for d in DTYPES if d.wgsl]
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def content(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Elements of every bit pattern that the type has; int64 within int32."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if dtype.name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype is INT64:
        return rng.integers(-(2**31), 2**31, shape)
    if dtype.narrow in ("i4", "u4", "i2", "u2"):
        low, high = dtype.limits
        return np.asarray(rng.integers(low, high + 1, shape)).astype(dtype.numpy)
    flat = np.frombuffer(rng.bytes(size * dtype.nbytes), dtype.numpy)
    return flat.reshape(shape)


def bits(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@given(dtype=st.sampled_from(ON_GPU), shape=SHAPES, packed=st.booleans(), seed=st.integers(0, 99))
def test_there_and_back(dtype: DType, shape: tuple[int, ...], packed: bool, seed: int) -> None:
    storage = storage_of(dtype, packed)
    array = content(dtype, shape, seed)
    words = storage.to_device(array)
    assert words.dtype.itemsize == 4 and words.flags.c_contiguous
    assert words.size == -(-array.size // storage.packing)
    assert words.nbytes <= storage.nbytes(shape)
    room = bytes(words.tobytes()).ljust(int(storage.nbytes(shape)), b"\xee")  # type: ignore[call-overload]
    back = storage.from_device(memoryview(room), dtype, shape)
    assert back.dtype == dtype.numpy and back.shape == shape
    nan = np.isnan(array.astype(np.float64)) if dtype.is_float else np.zeros(shape, bool)
    assert bits(back[~nan]) == bits(array[~nan])
    if dtype.is_float:
        assert np.isnan(back[nan].astype(np.float64)).all()


@given(shape=SHAPES, packing=st.sampled_from([1, 2, 4]))
def test_bytes_are_padded_and_never_zero(shape: tuple[int, ...], packing: int) -> None:
    nbytes = Storage("u32", packing).nbytes(shape)
    words = -(-int(np.prod(shape)) // packing)
    assert isinstance(nbytes, int)
    assert nbytes % ALIGNMENT == 0 and nbytes >= max(4 * words, ALIGNMENT)
    assert nbytes - 4 * words < ALIGNMENT or words == 0


def test_bytes_of_symbolic_shapes() -> None:
    n, m = symbol("n"), symbol("m")
    for storage in (Storage("f32"), Storage("f32", 2), Storage("i32", 4)):
        nbytes = storage.nbytes((n, 3, m))
        for sizes in ((1, 1), (4, 5), (7, 13)):
            binding = dict(zip("nm", sizes, strict=True))
            assert evaluate(nbytes, binding) == storage.nbytes((sizes[0], 3, sizes[1]))


def test_int64_is_narrowed_if_it_fits_and_refused_otherwise() -> None:
    storage = storage_of(INT64)
    edges = np.array([-(2**31), 2**31 - 1, 0])
    assert storage.to_device(edges).tolist() == edges.tolist()
    assert storage.to_device(np.zeros((0, 3), np.int64)).size == 0
    for value in (2**31, -(2**31) - 1, 2**62):
        with pytest.raises(RangeError, match=f"values from .*{value}.* do not fit int32"):
            storage.to_device(np.array([0, value]))


def test_arrays_that_are_not_contiguous() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = base[::2, ::-1].T
    words = Storage("f32").to_device(view)
    assert words.reshape(-1).tolist() == view.reshape(-1).tolist()
    small = np.arange(24, dtype=np.int8).reshape(4, 6)[:, ::-2].T
    packed = storage_of(INT8).to_device(small)
    assert packed.view(np.int8)[: small.size].tolist() == small.reshape(-1).tolist()


def test_what_is_read_is_a_copy() -> None:
    words = bytearray(np.arange(4, dtype=np.float32).tobytes())
    read = Storage("f32").from_device(memoryview(words), FLOAT32, (4,))
    words[:] = bytes(16)
    assert read.tolist() == [0, 1, 2, 3]
    read[0] = 5


def test_a_growing_value_has_gaps() -> None:
    storage = Storage("f32", layout="growing", axis=1, capacity=5)
    assert storage.growing and not Storage("f32").growing
    assert storage.row_size((2, 3, 4)) == 12 and storage.pitch((2, 3, 4)) == 20
    assert storage.nbytes((2, 3, 4)) == 2 * 5 * 4 * 4
    room = np.arange(40, dtype=np.float32)
    read = storage.from_device(memoryview(room).cast("B"), FLOAT32, (2, 3, 4))
    np.testing.assert_array_equal(read, room.reshape(2, 5, 4)[:, :3])
    opened = Storage("f32", layout="growing", axis=1, capacity=symbol("c"))
    with pytest.raises(PlanError, match="capacity c is not bound"):
        opened.from_device(memoryview(room).cast("B"), FLOAT32, (2, 3, 4))


def test_narrow_types_share_words_only_where_asked() -> None:
    assert storage_of(FLOAT16) == Storage("f32", 2, narrow="f16")
    assert storage_of(FLOAT16, packed=False) == Storage("f32", 1, narrow="f16")
    assert storage_of(INT8).packing == 4
    halves = np.array([1.0, -2.0, 0.5], np.float16)
    assert storage_of(FLOAT16).to_device(halves).nbytes == 8
    assert storage_of(FLOAT16, packed=False).to_device(halves).tolist() == [1.0, -2.0, 0.5]


@pytest.mark.parametrize("name", ["float64", "string", "uint64", "complex64"])
def test_types_without_kernels_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match=f"dtype {name} cannot be held on the GPU"):
        storage_of(from_name(name))
