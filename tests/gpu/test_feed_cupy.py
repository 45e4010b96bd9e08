"""Feeds into CuPy arrays: on the first CUDA device, and with a stand-in for CuPy over a simulated device."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from interlock import Feed, frameworks
from interlock.devices import stand_in
from interlock.errors import SampleError, UsageError
from interlock.frameworks import framework_named
from interlock.lowlevel import open_device
from interlock.testing import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def stand_in_for_cupy() -> Any:
    """Load the stand-in by its path: test folders are no packages."""
    name = "interlock_tests_fake_cupy"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake_cupy.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "lazy", "eager", "starve:feed", "random:0"])
def cupy(request: pytest.FixtureRequest) -> Iterator[Any]:
    """CuPy, or its stand-in for as long as the test runs."""
    if request.param == "cuda":
        request.getfixturevalue("cuda")
        yield pytest.importorskip("cupy")
        return
    fakes = stand_in_for_cupy()
    twin = fakes.Twin(request.param)
    before = forget_cupy()
    sys.modules["cupy"] = fakes.fake_cupy(twin)
    end = stand_in("cuda", twin)
    try:
        yield sys.modules["cupy"]
    finally:
        end()
        forget_cupy()
        sys.modules.update(before)


def forget_cupy() -> dict[str, Any]:
    """Let CuPy and its adapter be imported anew; return what there was."""
    framework_named.cache_clear()
    adapters = [f"{frameworks.__name__}.{name}" for name in ("_cupy", "_cupy_receiver", "_cupy_drain")]
    for name in adapters:
        vars(frameworks).pop(name.rpartition(".")[2], None)
    found = {name: sys.modules.pop(name, None) for name in ("cupy", *adapters)}
    return {name: module for name, module in found.items() if name == "cupy" and module is not None}


def rows(count: int, width: int = 1000) -> Any:
    """Return rows whose every element is the number of the row."""
    return np.repeat(np.arange(count, dtype=np.float32)[:, None], width, axis=1)


def numbers(array: Any) -> list[float]:
    """Return the one number that each row holds; fails if a row holds several."""
    found = array.get()
    assert (found.min(axis=1) == found.max(axis=1)).all(), found
    return found[:, 0].tolist()  # type: ignore[no-any-return]


def warm_up(feed: Any) -> None:
    """Let everything be loaded, pinned and allocated that a pass needs: a driver does it only while no stream is held.

    How many slots a pass takes depends on who is fast. What is pinned here and let go is there for all of them.
    """
    memories = [open_device("cuda").allocate_host(16_000) for _ in range(24)]
    del memories
    for result in [batch.copy() for batch in feed]:
        numbers(result)


@pytest.mark.parametrize("workers", [0, 4])
def test_batches_are_arrays_with_the_values_of_the_source(cupy, workers):
    data: dict[str, Any] = {name: (np.arange(138) % 7).reshape(23, 2, 3).astype(name) for name in DTYPES}
    data |= {"no columns": np.zeros((23, 0), np.float32), "numbers": np.arange(23)}
    feed = Feed(data, batch_size=5, to="cupy", workers=workers)
    batches = list(feed)
    assert [batch["bool"].shape[0] for batch in batches] == [5, 5, 5, 5, 3]
    for position, batch in enumerate(batches):
        for name, array in data.items():
            expected = array[5 * position : 5 * position + 5]
            assert isinstance(batch[name], cupy.ndarray)
            assert (batch[name].dtype, batch[name].shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(batch[name].get(), expected, err_msg=name)
    assert feed.statistics().host_syncs == 0


@pytest.mark.parametrize("name", ["longdouble", "clongdouble"])
def test_a_dtype_that_cupy_lacks_is_refused_by_name(cupy, name):
    assert cupy
    with pytest.raises(UsageError, match="leaf 'x'"):
        next(iter(Feed({"x": np.zeros((4, 2), name)}, batch_size=2, to="cupy")))


def test_bfloat16_keeps_its_bits(cupy):
    assert cupy
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    array = np.arange(12).reshape(6, 2).astype(dtype)
    for position, batch in enumerate(Feed(array, batch_size=2, to="cupy", workers=1)):
        assert batch.dtype == dtype
        np.testing.assert_array_equal(batch.get(), array[2 * position : 2 * position + 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_kept_batches_never_change(cupy, workers):
    assert cupy
    feed = Feed(rows(240), batch_size=2, to="cupy", workers=workers)
    kept = []
    for position, batch in enumerate(feed):
        if position % 10 == 0:
            kept.append((position, batch))
    for position, batch in kept:
        assert numbers(batch) == [2 * position, 2 * position + 1]
    assert feed.statistics().host_syncs == 0


def test_a_consumer_on_a_stream_of_its_own_reads_what_has_not_landed_yet(cupy):
    """The copies are held at a gate: no hand-over waits for them, and what is queued on the batches is right later."""
    feed = Feed(rows(20), batch_size=4, to="cupy", workers=2, depth=5)
    device = open_device("cuda")
    with cupy.cuda.Stream(non_blocking=True):
        warm_up(feed)
        with gate(device.stream("feed"), device=device):
            results = [batch.copy() for batch in feed]
        assert [numbers(result) for result in results] == [[4 * n + i for i in range(4)] for n in range(5)]
    assert feed.statistics().host_syncs == 0


def test_memory_is_not_given_away_while_a_stream_still_reads_it(cupy):
    """The consumer's stream is held at a gate with a read queued on a batch that is dropped: others come meanwhile."""
    side = cupy.cuda.Stream(non_blocking=True)
    feed = Feed(rows(80), batch_size=4, to="cupy", workers=1, depth=8)
    with side:
        warm_up(feed)
        batches = iter(feed)
        kept = [next(batches) for _ in range(6)]
        with gate(side):
            results = [kept.pop(0).copy() for _ in range(6)]
            results += [next(batches).copy() for _ in range(8)]
        for position, result in enumerate(results):
            assert numbers(result) == [4 * position + i for i in range(4)]


def test_a_batch_may_outlive_its_feed(cupy):
    """Its memory comes back with the next feed on the device, behind what still reads it then."""
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        warm_up(Feed(rows(16), batch_size=4, to="cupy", workers=0))
        feed = Feed(rows(4), batch_size=4, to="cupy", workers=0)
        batch = next(iter(feed))
        feed.close()
        del feed
        with gate(side):
            result = batch.copy()
            del batch
            later = [one.copy() for one in Feed(-rows(16), batch_size=4, to="cupy", workers=0)]
        assert numbers(result) == [0, 1, 2, 3]
        assert [numbers(one) for one in later] == [[-4 * n - i for i in range(4)] for n in range(4)]


def test_streams_that_blocks_alone_keep_live_until_what_they_hold_is_recorded(cupy):
    kept = []
    for _ in range(3):
        with cupy.cuda.Stream(non_blocking=True):
            kept += list(Feed(rows(4), batch_size=4, to="cupy", workers=0))
    kept.clear()
    gc.collect()
    assert [numbers(batch) for batch in Feed(rows(4), batch_size=4, to="cupy", workers=0)] == [[0, 1, 2, 3]]


def test_a_block_that_another_thread_s_own_stream_reads_waits_for_that_thread(cupy):
    """Also when that thread has ended and another one has its number."""
    receiver = importlib.import_module("interlock.frameworks._cupy_receiver")
    device, returned = open_device("cuda"), receiver.Returned()
    copying = device.stream("feed")
    other = threading.Thread()
    vars(other)["_ident"] = threading.get_ident()
    theirs = receiver.Use(SimpleNamespace(ptr=2), other)
    ours = receiver.Use(cupy.cuda.get_current_stream(), threading.current_thread())
    returned.blocks.extend([("unused", None), ("theirs", theirs), ("ours", ours)])
    returned.collect(device, copying)
    assert list(returned.blocks) == [("theirs", theirs)]


def test_the_memory_is_cupy_s_own_and_is_counted_as_such(cupy):
    pool = cupy.get_default_memory_pool()
    gc.collect()
    before = pool.used_bytes()
    kept = list(Feed(rows(16, 100_000), batch_size=4, to="cupy", workers=0))
    assert pool.used_bytes() >= 4 * 1_600_000
    assert pool.used_bytes() - before < 6 * 1_600_000  # less where blocks of an earlier feed came back meanwhile
    del kept
    for _ in range(4):  # few blocks serve many batches
        for batch in Feed(rows(16, 100_000), batch_size=4, to="cupy", workers=0):
            del batch
    assert pool.used_bytes() - before < 10 * 1_600_000


def test_the_program_s_current_stream_stays_as_it_is(cupy):
    """Also one that was chosen with `use`, which no block brings back."""
    before = cupy.cuda.get_current_stream()
    chosen = cupy.cuda.Stream(non_blocking=True).use()
    try:
        for batch in Feed(rows(12), batch_size=4, to="cupy", workers=0):
            assert cupy.cuda.get_current_stream().ptr == chosen.ptr
            del batch
    finally:
        before.use()


def test_fixed_addresses_are_the_same_in_every_pass(cupy):
    assert cupy
    feed = Feed(rows(32), batch_size=4, to="cupy", fixed=True, workers=2)
    places = set()
    for _ in range(2):
        for position, batch in enumerate(feed):
            places.add(batch.data.ptr)
            assert numbers(batch) == [4 * position + i for i in range(4)]
    assert len(places) == 1


def test_the_stream_that_had_a_batch_at_fixed_addresses_is_there_until_another_one_waits_for_it(cupy):
    """CuPy destroys a stream with its last reference, and a driver may crash on one that is gone."""
    batches = iter(Feed(rows(12), batch_size=4, to="cupy", fixed=True, workers=0))
    with cupy.cuda.Stream(non_blocking=True):
        assert numbers(next(batches)) == [0, 1, 2, 3]
    assert numbers(next(batches)) == [4, 5, 6, 7]


def test_a_short_last_batch_has_no_fixed_addresses(cupy):
    assert cupy
    batches = iter(Feed(rows(6), batch_size=4, to="cupy", fixed=True, workers=0))
    assert numbers(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="drop_last=True"):
        next(batches)


def test_zero_copy_is_refused_with_the_reason(cupy):
    assert cupy
    with pytest.raises(UsageError, match="straight to CuPy's own memory"):
        Feed(rows(4), batch_size=4, to="cupy", zero_copy=True)


@pytest.mark.parametrize("device", ["host", "simulated:lazy"])
def test_other_devices_are_refused_by_name(cupy, device):
    assert cupy
    with pytest.raises(UsageError, match="CuPy has no arrays on"):
        Feed(rows(4), batch_size=4, to="cupy", device=device)


class Broken:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 6:
            raise OSError("the disk is gone")
        return np.full(1000, index, np.float32)


@pytest.mark.parametrize("workers", [0, 4])
def test_an_error_in_the_source_comes_after_the_batches_before_it(cupy, workers):
    assert cupy
    batches = iter(Feed(Broken(), batch_size=2, to="cupy", workers=workers))
    found = [next(batches) for _ in range(3)]
    with pytest.raises(SampleError, match="the disk is gone"):
        next(batches)
    assert [numbers(batch) for batch in found] == [[0, 1], [2, 3], [4, 5]]


def test_a_feed_may_be_dropped_in_the_middle(cupy):
    assert cupy
    feed = Feed(rows(40), batch_size=4, to="cupy", workers=2)
    for _ in range(5):
        batches = iter(feed)
        first = next(batches)
        del batches
        assert numbers(first) == [0, 1, 2, 3]
    assert [numbers(batch)[0] for batch in feed] == [4 * n for n in range(10)]


def test_a_second_device_gets_batches_while_the_first_is_current(two_devices):
    cupy: Any = pytest.importorskip("cupy")
    feeds = [Feed(rows(40), batch_size=4, to="cupy", device=device, workers=2) for device in two_devices]
    for position, pair in enumerate(zip(*feeds, strict=True)):
        for index, batch in enumerate(pair):
            assert batch.device.id == index
            assert numbers(batch) == [4 * position + i for i in range(4)]
        assert cupy.cuda.runtime.getDevice() == 0
