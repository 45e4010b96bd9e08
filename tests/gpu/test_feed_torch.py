"""Feeds into torch's CUDA tensors: on the first CUDA device, or, where there is none, in simulations.

A simulation runs the same adapter on PyTorch's simulated `cuda`: what is not ordered reads poison, and is reported as a
hazard.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from interlock import Feed
from interlock.errors import BoundError, SampleError, UsageError
from interlock.lowlevel import SimulatedDevice, wait
from interlock.testing import gate

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def rows(count: int, width: int = 1000) -> Any:
    """Return rows whose every element is the number of the row."""
    return np.repeat(np.arange(count, dtype=np.float32)[:, None], width, axis=1)


def numbers(tensor: torch.Tensor) -> list[float]:
    """Return the one number that each row holds; fails if a row holds several."""
    array = tensor.cpu().numpy()
    assert (array.min(axis=1) == array.max(axis=1)).all(), array
    found: list[float] = array[:, 0].tolist()
    return found


def warm_up(device: Any, feed: Any, slot_bytes: int = 16_000) -> None:
    """Let everything be loaded, pinned and allocated that a pass needs: a driver does it only while no stream is held.

    How many slots a pass takes depends on who is fast. What is pinned here and let go is there for all of them.
    """
    memories = [device.allocate_host(slot_bytes) for _ in range(24)]
    del memories
    for result in [batch + 1 for batch in feed]:
        numbers(result)


@pytest.mark.parametrize("workers", [0, 4])
def test_batches_are_cuda_tensors_with_the_values_of_the_source(world, workers):
    assert world.name == "cuda:0"
    data: dict[str, Any] = {name: (np.arange(138) % 7).reshape(23, 2, 3).astype(name) for name in DTYPES}
    data |= {"no columns": np.zeros((23, 0), np.float32), "numbers": np.arange(23)}
    feed = Feed(data, batch_size=5, to="torch", device="cuda", workers=workers)
    batches = list(feed)
    assert [len(batch["bool"]) for batch in batches] == [5, 5, 5, 5, 3]
    for position, batch in enumerate(batches):
        for name, array in data.items():
            expected = array[5 * position : 5 * position + 5]
            tensor = batch[name]
            assert (tensor.device, tuple(tensor.shape)) == (torch.device("cuda", 0), expected.shape)
            assert tensor.is_contiguous()
            found = tensor.cpu().numpy()
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected, err_msg=name)
    assert feed.statistics().host_syncs == 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_keep_their_bits(world, name):
    assert world
    array = np.arange(12).reshape(6, 2).astype(getattr(ml_dtypes, name))
    for position, batch in enumerate(Feed(array, batch_size=2, to="torch", device="cuda", workers=1)):
        assert batch.dtype == getattr(torch, name)
        expected = array[2 * position : 2 * position + 2].view(np.uint8)
        np.testing.assert_array_equal(batch.view(torch.uint8).cpu().numpy(), expected)


def test_a_dtype_that_torch_lacks_is_refused_by_name(world):
    assert world
    feed = Feed({"x": np.zeros((4, 2), np.longdouble)}, batch_size=2, to="torch", device="cuda")
    with pytest.raises(UsageError, match="leaf 'x'"):
        next(iter(feed))


@pytest.mark.parametrize("workers", [0, 2])
def test_kept_batches_never_change(world, workers):
    assert world
    feed = Feed(rows(240), batch_size=2, to="torch", device="cuda", workers=workers)
    kept = []
    for position, batch in enumerate(feed):
        if position % 10 == 0:
            kept.append((position, batch))
    for position, batch in kept:
        assert numbers(batch) == [2 * position, 2 * position + 1]
    assert feed.statistics().host_syncs == 0


def test_a_consumer_on_a_stream_of_its_own_reads_what_has_not_landed_yet(world):
    """The copies are held at a gate: no hand-over waits for them, and what is queued on the batches is right later."""
    feed = Feed(rows(20), batch_size=4, to="torch", device="cuda", workers=2, depth=5)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        warm_up(world, feed)
        with gate(world.stream("feed")):
            results = [batch + 1 for batch in feed]
        assert [numbers(result) for result in results] == [[4 * n + 1 + i for i in range(4)] for n in range(5)]
    assert feed.statistics().host_syncs == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_consumer_that_is_faster_than_the_link_waits_for_slots(world, workers):
    """The budget has room for two slots, which copies still read when more are wanted."""
    assert world
    feed = Feed(rows(80), batch_size=4, to="torch", device="cuda", workers=workers, budget_bytes=40_000, timeout_s=10)
    assert [numbers(batch * 1)[0] for batch in list(feed)] == [4 * position for position in range(20)]
    assert feed.statistics().slots == 2


def test_memory_is_not_given_away_while_a_stream_still_reads_it(world):
    """The consumer's stream is held at a gate with reads queued on batches that are dropped: others come meanwhile."""
    assert world
    feed = Feed(rows(80), batch_size=4, to="torch", device="cuda", workers=1, depth=8)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        warm_up(world, feed)
        batches = iter(feed)
        kept = [next(batches) for _ in range(6)]
        with gate(side):
            results = [kept.pop(0) + 1 for _ in range(6)]
            results += [next(batches) + 1 for _ in range(8)]
        for position, result in enumerate(results):
            assert numbers(result) == [4 * position + 1 + i for i in range(4)]


def allocated(device: Any) -> int:
    """Return what torch says is allocated, once nothing is under way any more."""
    gc.collect()
    torch.cuda.synchronize()
    wait(device.record(device.stream("feed")), timeout_s=20, what="the copies")  # and let go of what they kept
    return torch.cuda.memory_allocated()


def test_a_host_far_ahead_does_not_fill_the_device_with_batches(world):
    """The consumer's stream is held at a gate: then copies stop, and the feed when its slots are used up."""
    before, size = allocated(world), 4 * 400_000
    options: dict[str, Any] = {"batch_size": 4, "to": "torch", "device": "cuda", "budget_bytes": 4 * size}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        warm_up(world, Feed(rows(60, 100_000), workers=1, **options), size)
        patience_s = 0.2 if isinstance(world, SimulatedDevice) else 3.0  # a device that others use too has its pauses
        feed = Feed(rows(60, 100_000), workers=1, timeout_s=patience_s, **options)
        with gate(side), pytest.raises(BoundError, match=r"the copy of batch \d+"):
            deque(feed, maxlen=0)
    assert 4 <= feed.statistics().batches < 12
    assert torch.cuda.memory_allocated() - before < 14 * size


def test_the_memory_is_torch_s_own_and_is_counted_as_such(world):
    before = allocated(world)
    kept = list(Feed(rows(16, 100_000), batch_size=4, to="torch", device="cuda", workers=0))
    assert 4 * 1_600_000 <= allocated(world) - before < 5 * 1_600_000
    del kept
    assert allocated(world) <= before


def test_a_change_of_one_leaf_in_place_does_not_spoil_the_gradient_of_another(world):
    """Leaves share memory, but not what autograd counts their changes by."""
    assert world
    data = {"x": np.ones((4, 3), np.float32), "y": np.ones((4, 3), np.float32)}
    for batch in Feed(data, batch_size=4, to="torch", device="cuda", workers=0):
        weight = torch.ones(3, device="cuda", requires_grad=True)
        loss = (batch["x"] * weight).sum()
        batch["y"].add_(1)
        loss.backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [4, 4, 4]


def test_the_program_s_stream_and_device_stay_as_they_are(world):
    assert world
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for batch in Feed(rows(12), batch_size=4, to="torch", device="cuda", workers=0):
            assert torch.cuda.current_stream() == side
            del batch
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_device() == 0


def test_torch_s_default_device_is_where_batches_go(world):
    assert world
    with torch.device("cuda"):
        batch = next(iter(Feed(rows(4), batch_size=4, to="torch", workers=0)))
    assert batch.device == torch.device("cuda", 0)


# ------------------------------------------------------------ fixed addresses


def test_a_graph_replays_on_the_batches_of_every_pass_at_the_same_addresses(world):
    assert world
    feed = Feed(rows(32), batch_size=4, to="torch", device="cuda", fixed=True, workers=2)
    static = next(iter(feed))
    address = static.data_ptr()
    output = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output.copy_(static.amax(dim=1))
    for _ in range(2):
        results = []
        for batch in feed:
            assert batch.data_ptr() == address
            graph.replay()
            results.append(output.clone())
        assert torch.cat(results).tolist() == list(range(32))
    assert feed.statistics().host_syncs == 0


def test_fixed_addresses_are_written_after_the_last_read_on_another_stream(world):
    """The stream that had the batch before is held at a gate, with a read of it queued."""
    assert world
    warm_up(world, Feed(rows(12), batch_size=4, to="torch", device="cuda", workers=1))
    batches = iter(Feed(rows(12), batch_size=4, to="torch", device="cuda", fixed=True, workers=1))
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with gate(first):
        with torch.cuda.stream(first):
            before = next(batches) + 1
        with torch.cuda.stream(second):
            after = next(batches) + 1
    torch.cuda.synchronize()
    assert (numbers(before), numbers(after)) == ([1, 2, 3, 4], [5, 6, 7, 8])


def test_a_short_last_batch_has_no_fixed_addresses(world):
    assert world
    batches = iter(Feed(rows(6), batch_size=4, to="torch", device="cuda", fixed=True, workers=0))
    assert numbers(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="drop_last=True"):
        next(batches)


# ------------------------------------------------------------ refusals and failures


def test_zero_copy_is_refused_with_the_reason(world):
    assert world
    with pytest.raises(UsageError, match="straight to torch's own memory"):
        Feed(rows(4), batch_size=4, to="torch", device="cuda", zero_copy=True)


def test_fixed_addresses_are_refused_on_the_host():
    with pytest.raises(UsageError, match="fixed"):
        Feed(rows(4), batch_size=4, to="torch", device="host", fixed=True)


class Broken:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 6:
            raise OSError("the disk is gone")
        return np.full(1000, index, np.float32)


@pytest.mark.parametrize("workers", [0, 4])
def test_an_error_in_the_source_comes_after_the_batches_before_it(world, workers):
    assert world
    batches = iter(Feed(Broken(), batch_size=2, to="torch", device="cuda", workers=workers))
    found = [next(batches) for _ in range(3)]
    with pytest.raises(SampleError, match="the disk is gone"):
        next(batches)
    assert [numbers(batch) for batch in found] == [[0, 1], [2, 3], [4, 5]]


def test_a_feed_may_be_dropped_in_the_middle(world):
    assert world
    feed = Feed(rows(40), batch_size=4, to="torch", device="cuda", workers=2)
    for _ in range(5):
        batches = iter(feed)
        first = next(batches)
        del batches
        assert numbers(first) == [0, 1, 2, 3]
    assert [numbers(batch)[0] for batch in feed] == [4 * n for n in range(10)]


def test_a_second_device_gets_batches_while_the_first_is_current(two_devices):
    feeds = [Feed(rows(40), batch_size=4, to="torch", device=device, workers=2) for device in two_devices]
    for position, pair in enumerate(zip(*feeds, strict=True)):
        for index, batch in enumerate(pair):
            assert batch.device == torch.device("cuda", index)
            assert numbers(batch) == [4 * position + i for i in range(4)]
        assert torch.cuda.current_device() == 0
    assert [feed.statistics().host_syncs for feed in feeds] == [0, 0]
