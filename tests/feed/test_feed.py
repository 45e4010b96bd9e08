"""What a feed promises: order, values, lifetimes, errors."""

from __future__ import annotations

import gc
import threading
import traceback

import numpy as np
import pytest

from interlock import Feed, SampleInfo
from interlock.errors import BoundError, SampleError, UsageError
from interlock.lowlevel import Handoff, observe

FRAMEWORKS = ["numpy", "torch", "jax"]


class Squares:
    """Samples by index: a dict with a pair in it."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if index >= self.length:
            raise IndexError(index)
        return {"x": np.full((2, 3), index, np.float32), "pair": (index * index, np.array([index], np.uint8))}


class Broken(Squares):
    """Some samples raise."""

    def __getitem__(self, index: int):
        if index % 7 == 3:
            raise ValueError(f"bad apple {index}")
        return super().__getitem__(index)


def values(batches, name="x"):
    return [np.asarray(batch[name])[:, 0, 0].tolist() for batch in batches]


@pytest.mark.parametrize("to", FRAMEWORKS)
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_batches_hold_the_samples_in_order(to, workers):
    batches = list(Feed(Squares(), batch_size=8, to=to, workers=workers))
    assert values(batches) == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    assert [np.asarray(batch["pair"][0]).tolist() for batch in batches][2] == [256, 289, 324, 361]
    assert [np.asarray(batch["pair"][1]).shape for batch in batches] == [(8, 1), (8, 1), (4, 1)]


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_batches_are_the_framework_s_own_arrays(to):
    kinds = {"numpy": "numpy", "torch": "torch", "jax": "jaxlib"}
    batch = next(iter(Feed(np.zeros((4, 2), np.float32), batch_size=2, to=to)))
    assert type(batch).__module__.split(".")[0] == kinds[to]
    assert batch.shape == (2, 2)


def test_the_order_is_the_same_for_any_number_of_workers_and_differs_by_epoch_and_seed():
    def order(workers, seed, epochs=2):
        feed = Feed(np.arange(50), batch_size=7, workers=workers, shuffle=True, seed=seed)
        return [np.concatenate(list(feed)).tolist() for _ in range(epochs)]

    first = order(0, seed=1)
    assert first == order(1, seed=1) == order(5, seed=1)
    assert first[0] != first[1]
    assert first != order(0, seed=2)
    assert sorted(first[0]) == sorted(first[1]) == [*range(50)]


def test_an_epoch_can_be_set_to_go_on_from_an_earlier_run():
    feed = Feed(np.arange(10), batch_size=10, shuffle=True, seed=3)
    second = [list(feed), list(feed)][1][0].tolist()
    again = Feed(np.arange(10), batch_size=10, shuffle=True, seed=3)
    again.epoch = 1
    assert next(iter(again)).tolist() == second


def test_length_and_drop_last():
    assert len(Feed(np.arange(10), batch_size=4)) == 3
    assert len(Feed(np.arange(10), batch_size=4, drop_last=True)) == 2
    assert [len(batch) for batch in Feed(np.arange(10), batch_size=4, drop_last=True)] == [4, 4]
    assert [len(batch) for batch in Feed((i for i in range(10)), batch_size=4, drop_last=True)] == [4, 4]
    with pytest.raises(TypeError, match="no length"):
        len(Feed(iter([1]), batch_size=1))


@pytest.mark.parametrize("workers", [0, 3])
def test_a_function_of_a_sample_info_ends_the_epoch_by_stop_iteration(workers):
    seen = []

    def sample(info: SampleInfo):
        if info.idx_in_epoch >= 10:
            raise StopIteration
        seen.append((info.idx_in_epoch, info.idx_in_batch, info.iteration, info.epoch_idx))
        return np.float32(info.idx_in_epoch), np.array([info.epoch_idx])

    feed = Feed(sample, batch_size=4, workers=workers)
    assert [batch[0].tolist() for batch in feed] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sorted(seen) == [(i, i % 4, i // 4, 0) for i in range(10)]
    assert [batch[1].ravel().tolist() for batch in feed] == [[1] * 4, [1] * 4, [1] * 2]


def test_an_iterable_is_read_in_order_each_epoch_and_an_iterator_only_once():
    class Lines:
        def __iter__(self):
            return (np.array([i]) for i in range(5))

    feed = Feed(Lines(), batch_size=2, workers=4)
    assert [[b.ravel().tolist() for b in feed] for _ in range(2)] == [[[0, 1], [2, 3], [4]]] * 2
    once = Feed(iter([1, 2]), batch_size=2)
    assert [b.tolist() for b in once] == [[1, 2]]
    with pytest.raises(UsageError, match="read already"):
        iter(once)


def test_ids_are_indices_unless_the_source_has_its_own():
    class Named(Squares):
        def id_of(self, index: int) -> str:
            return f"row-{index}"

    plain = [ids.tolist() for ids, _ in Feed(Squares(5), batch_size=3, ids=True)]
    named = [ids.tolist() for ids, _ in Feed(Named(5), batch_size=3, ids=True)]
    shuffled = Feed(np.arange(30), batch_size=30, shuffle=True, ids=True)
    assert plain == [[0, 1, 2], [3, 4]]
    assert named == [["row-0", "row-1", "row-2"], ["row-3", "row-4"]]
    for ids, batch in shuffled:
        assert ids.tolist() == batch.tolist()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_names_the_sample_and_keeps_the_worker_s_traceback(workers):
    feed = iter(Feed(Broken(), batch_size=2, workers=workers))
    assert values([next(feed)]) == [[0, 1]]
    with pytest.raises(SampleError, match=r"sample 3 could not be read: ValueError: bad apple 3") as caught:
        next(feed)
    assert caught.value.index == 3
    assert caught.value.__cause__ is not None
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert frames[-1].line == 'raise ValueError(f"bad apple {index}")'
    assert list(feed) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_exception_of_a_sample_ends_the_epoch_and_not_a_worker(workers):
    class Leaving(Squares):
        def __getitem__(self, index: int):
            if index == 5:
                raise SystemExit(9)
            return super().__getitem__(index)

    feed = iter(Feed(Leaving(), batch_size=4, workers=workers))
    next(feed)
    with pytest.raises(SystemExit, match="9"):
        next(feed)


@pytest.mark.parametrize("workers", [0, 3])
def test_skipped_samples_leave_no_gap_and_stand_in_the_ledger(workers):
    feed = Feed(Broken(), batch_size=4, workers=workers, on_error="skip", ids=True)
    found = [(ids.tolist(), values([batch])[0]) for ids, batch in feed]
    assert found[0] == ([0, 1, 2], [0, 1, 2])
    assert [i for ids, _ in found for i in ids] == [i for i in range(20) if i % 7 != 3]
    assert [(f.index, f.id, f.reason) for f in feed.failures][:2] == [
        (3, 3, "ValueError: bad apple 3"),
        (10, 10, "ValueError: bad apple 10"),
    ]
    assert feed.statistics().failed == 3


def test_a_source_of_which_every_sample_fails_gives_no_batch():
    class Bad(Squares):
        def __getitem__(self, index: int):
            raise OSError("gone")

    feed = Feed(Bad(5), batch_size=2, on_error="skip")
    assert list(feed) == []
    assert [f.index for f in feed.failures] == [0, 1, 2, 3, 4]
    with pytest.raises(SampleError, match="sample 0"):
        list(Feed(Bad(5), batch_size=2))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([np.zeros(3), np.zeros(4)], r"sample 1: the array has shape \(4,\), the first sample had \(3,\)"),
        ([np.zeros(3, "f4"), np.zeros(3)], "sample 1: the array has dtype float64, the first sample had float32"),
        ([np.array(["a"])], "dtype <U1"),
        ([np.array([None])], "dtype object"),
        ([[[1, 2], [3]]], "parts"),
        ([{"a": 1}, {"b": 1}], "its parts are 'b', the first sample had 'a'"),
        ([{}], "holds no array"),
        ([np.zeros(2, ">f4")], "byte order"),
    ],
)
def test_samples_that_do_not_fit_are_refused_by_name(samples, message):
    if message == "parts":
        samples, message = [[[1, 2], [3]], [[1], [3]]], "its parts are"
    with pytest.raises(SampleError, match=message):
        list(Feed(samples, batch_size=4))


def test_a_source_that_shrinks_is_named():
    source = Squares(10)
    feed = iter(Feed(source, batch_size=2, workers=0, depth=1))
    next(feed)
    source.length = 4
    next(feed)
    with pytest.raises(SampleError, match="had 10 samples when the epoch began and has 4 now"):
        next(feed)


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_kept_batches_never_change(to):
    feed = Feed(np.arange(400, dtype=np.float32).reshape(100, 4), batch_size=5, to=to, depth=3)
    kept = list(feed)
    for _ in feed:
        pass
    assert np.concatenate([np.asarray(batch) for batch in kept]).ravel().tolist() == [*range(400)]
    assert feed.statistics().slots_lent >= 20


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_a_crop_of_a_batch_keeps_it_alive(to):
    feed = Feed(np.arange(400, dtype=np.float32).reshape(100, 4), batch_size=5, to=to)
    crops = [batch[1:2, 2] for batch in feed]
    for _ in feed:
        pass
    assert [float(np.asarray(crop)[0]) for crop in crops] == [20 * n + 6 for n in range(20)]


@pytest.mark.parametrize("to", FRAMEWORKS)
def test_dropped_batches_give_their_slots_back(to):
    feed = Feed(np.zeros((500, 4), np.float32), batch_size=5, to=to, depth=2)
    for _ in range(3):
        for batch in feed:
            del batch
    gc.collect()
    assert feed.statistics().slots <= 6


def test_a_consumer_that_holds_everything_is_told_what_holds_what():
    feed = Feed(np.zeros((64, 1024)), batch_size=4, budget_bytes=5 * 4 * 1024 * 8, timeout_s=0.2)
    kept: list[object] = []
    with pytest.raises(
        BoundError, match=r"still holds 5 of 5 batches \(numbers 0, 1, 2, 3, 4\), 163,840 of 163,840 bytes"
    ):
        kept.extend(feed)
    assert len(kept) == 5


def test_a_batch_larger_than_the_budget_is_refused():
    with pytest.raises(BoundError, match="one batch takes 8,192 bytes: the feed may use 4,096; raise budget_bytes"):
        list(Feed(np.zeros((4, 1024)), batch_size=1, budget_bytes=4096))


def test_batches_in_a_reference_cycle_are_collected_before_anybody_waits():
    feed = Feed(np.zeros((64, 1024)), batch_size=4, budget_bytes=5 * 4 * 1024 * 8, timeout_s=5.0)
    gc.disable()
    try:
        for batch in feed:
            cycle = [batch]
            cycle.append(cycle)
    finally:
        gc.enable()
    assert feed.statistics().batches == 16


def test_leaving_early_ends_the_workers():
    before = threading.active_count()
    feed = Feed(Squares(1000), batch_size=2, workers=3)
    for _ in feed:
        break
    with Feed(Squares(1000), batch_size=2, workers=3) as other:
        iterator = iter(other)
        next(iterator)
    assert next(iterator, None) is None
    for thread in threading.enumerate():
        if thread.name.startswith("interlock-feed"):
            thread.join(5)
    assert threading.active_count() <= before


def test_two_iterations_at_once_do_not_disturb_each_other():
    feed = Feed(np.arange(12), batch_size=3)
    assert [(a.tolist(), b.tolist()) for a, b in zip(feed, feed, strict=True)] == [
        ([i, i + 1, i + 2],) * 2 for i in range(0, 12, 3)
    ]


def test_statistics_count_what_happened():
    feed = Feed(np.zeros((10, 4), np.float32), batch_size=4)
    for _ in feed:
        pass
    found = feed.statistics()
    assert (found.batches, found.samples, found.nbytes, found.failed, found.host_syncs) == (3, 10, 160, 0, 0)
    assert found.wait_s > 0
    assert found.fetch_s > 0
    assert found.as_dict()["batches"] == 3


def test_hand_offs_are_events():
    events: list[object] = []
    stop = observe(events.append)
    try:
        for batch in Feed(np.zeros((6, 4)), batch_size=2, workers=0, depth=1):
            del batch
    finally:
        stop()
    found = [(event.what, event.sequence) for event in events if isinstance(event, Handoff)]
    assert found == [("lent", 0), ("returned", 0), ("lent", 1), ("returned", 1), ("lent", 2), ("returned", 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1, "depth": 0}, "depth is 0"),
        ({"batch_size": 1, "workers": -1}, "workers is -1"),
        ({"batch_size": 1, "to": "tensorflow"}, "no framework is called 'tensorflow'"),
        ({"batch_size": 1, "device": "tpu"}, "no device is called 'tpu'"),
        ({"batch_size": 1, "on_error": "ignore"}, "on_error is 'ignore'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Feed(np.zeros(3), **arguments)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "a int is no source"),
        ({"a": [1], "b": 2}, "a dict is a source only if all its values are arrays"),
        ((np.zeros(3), np.zeros(4)), "differ in rows: '0' has 3, '1' has 4"),
    ],
)
def test_what_is_no_source_is_refused(source, message):
    with pytest.raises(UsageError, match=message):
        Feed(source, batch_size=1)
    with pytest.raises(UsageError, match="only a source with a length can be shuffled"):
        Feed(iter([]), batch_size=1, shuffle=True)


def test_zero_samples_give_zero_batches():
    assert list(Feed(np.zeros((0, 3)), batch_size=2)) == []
    assert list(Feed(iter([]), batch_size=2)) == []
