"""Samples that a source cannot give: attempts, substitutes, bounds, and the record of them."""

from __future__ import annotations

import json
import threading
from collections import Counter

import numpy as np
import pytest

from interlock import Feed, Shard
from interlock.errors import SampleError, SinkError, UsageError
from interlock.feed import Tolerance, retry
from interlock.feed._readers import SampleReader
from interlock.feed._samples import MapSamples

WORKERS = pytest.mark.parametrize("workers", [0, 3])


class Numbers:
    """The numbers below a length, of which some can never be read, and some only after so many failures."""

    def __init__(self, length, bad=(), flaky=()):
        self.length = length
        self.bad = frozenset(bad)
        self.left = dict(flaky)
        self.asked: Counter[int] = Counter()
        self.lock = threading.Lock()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with self.lock:
            self.asked[index] += 1
            failing = self.left.get(index, 0)
            self.left[index] = failing - 1
        if index in self.bad or failing > 0:
            raise ValueError(f"bad apple {index}")
        return np.int64(index)


class Named(Numbers):
    """Each number has a name, the longer the greater it is."""

    def id_of(self, index):
        return "x" * index


class Bulk(Numbers):
    """Many at once, if none of them is bad."""

    def read_into(self, indices, out):
        out[...] = [self[int(index)] for index in indices]


def read(feed):
    return [batch.tolist() for batch in feed]


def told(feed):
    return [(one.index, one.action, one.substitute_index, one.attempts) for one in feed.failures]


# ---------------------------------------------------------------- attempts


@WORKERS
@pytest.mark.parametrize("kind", [Numbers, Bulk])
def test_a_sample_that_comes_at_a_later_attempt_is_as_good_as_any(kind, workers):
    source = kind(10, flaky={0: 2, 5: 1, 9: 2})
    feed = Feed(source, batch_size=4, workers=workers, on_error=retry(3))
    assert read(feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert feed.failures == []
    assert feed.statistics().failed == 0
    repeated = feed.statistics().retried
    assert repeated == 5 if kind is Numbers else 0 < repeated <= 5


@WORKERS
@pytest.mark.parametrize("bad", [0, 5])
def test_a_sample_that_fails_in_all_attempts_raises_unless_said_otherwise(bad, workers):
    source = Numbers(10, bad=[bad])
    feed = Feed(source, batch_size=4, workers=workers, on_error=retry(2))
    with pytest.raises(SampleError, match=rf"sample {bad} could not be read: ValueError: bad apple {bad}"):
        read(feed)
    assert source.asked[bad] == 3
    assert told(feed) == [(bad, "raised", None, 3)]


@WORKERS
def test_after_its_attempts_a_sample_is_left_out_or_replaced_if_that_was_asked_for(workers):
    skipping = Feed(Numbers(6, bad=[0, 4]), batch_size=3, workers=workers, on_error=retry(1, then="skip"))
    assert read(skipping) == [[1, 2], [3, 5]]
    assert told(skipping) == [(0, "skipped", None, 2), (4, "skipped", None, 2)]
    replacing = Feed(Numbers(6, bad=[0, 4]), batch_size=3, workers=workers, on_error=retry(1, then="substitute"))
    assert read(replacing) == [[1, 1, 2], [3, 5, 5]]
    assert told(replacing) == [(0, "substituted", 1, 2), (4, "substituted", 5, 2)]


def test_a_function_is_asked_again_and_still_ends_the_epoch():
    calls: Counter[int] = Counter()

    def sample(info):
        calls[info.idx_in_epoch] += 1
        if info.idx_in_epoch == 5:
            raise StopIteration
        if info.idx_in_epoch == 2 and calls[2] == 1:
            raise OSError("later")
        return np.int64(info.idx_in_epoch)

    assert read(Feed(sample, batch_size=2, workers=0, on_error=retry(1))) == [[0, 1], [2, 3], [4]]


def test_an_epoch_may_end_at_a_later_attempt():
    """The end is not known at the first: it fails, and so do two more positions once."""
    calls: Counter[int] = Counter()

    def sample(info):
        calls[info.idx_in_epoch] += 1
        if info.idx_in_epoch >= 3:
            raise OSError("later") if calls[info.idx_in_epoch] == 1 else StopIteration
        return np.int64(info.idx_in_epoch)

    feed = Feed(sample, batch_size=2, workers=0, on_error=retry(1))
    assert read(feed) == [[0, 1], [2]]
    assert feed.failures == []


def test_a_pause_doubles_with_each_attempt():
    tolerance = retry(4, pause_s=0.5)
    assert [tolerance.pause_before(attempt) for attempt in (2, 3, 4)] == [0.5, 1, 2]


def test_closing_a_feed_ends_the_pause_of_a_worker():
    """The pause is an hour; the worker is inside it, or about to be, when the feed is closed."""
    source = Numbers(8, flaky={4: 1})
    reader = SampleReader(
        MapSamples(source, range(8)), 4, workers=1, bulk=False, drop_last=False, tolerance=retry(1, pause_s=3600)
    )

    def fail() -> None:
        source[4]

    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.extend(reader._persist(fail)))
    waiting.start()
    reader.stop()
    waiting.join(20)
    assert not waiting.is_alive()
    assert str(found[0]) == "bad apple 4"
    assert found[1] == 1


# ---------------------------------------------------------------- substitutes


@WORKERS
@pytest.mark.parametrize("kind", [Numbers, Bulk])
def test_a_bad_sample_s_row_holds_the_next_that_can_be_read(kind, workers):
    feed = Feed(kind(10, bad=[3, 4, 9]), batch_size=4, workers=workers, ids=True, on_error="substitute")
    batches = [(ids.tolist(), batch.tolist()) for ids, batch in feed]
    assert [batch for _, batch in batches] == [[0, 1, 2, 5], [5, 5, 6, 7], [8, 0]]
    assert all(ids == batch for ids, batch in batches), "ids are those of the samples that are really there"
    assert told(feed) == [(3, "substituted", 5, 1), (4, "substituted", 5, 1), (9, "substituted", 0, 1)]
    found = feed.statistics()
    assert (found.samples, found.failed, found.substituted) == (10, 3, 3)


@WORKERS
def test_the_first_batch_may_be_bad_from_end_to_end(workers):
    feed = Feed(Numbers(12, bad=range(6)), batch_size=3, workers=workers, on_error="substitute")
    assert read(feed) == [[6, 6, 6], [6, 6, 6], [6, 7, 8], [9, 10, 11]]


def test_ids_of_substitutes_may_be_longer_than_those_they_replace():
    feed = Feed(Named(6, bad=[2]), batch_size=3, ids=True, on_error="substitute")
    assert [ids.tolist() for ids, _ in feed] == [["", "x", "xxx"], ["xxx", "xxxx", "xxxxx"]]
    assert [(one.id, one.substitute_id) for one in feed.failures] == [("xx", "xxx")]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_substitute_comes_whoever_reads_it(shuffle):
    """One rank or three, from the beginning or from the middle: a row has the sample that it has with one rank."""

    def make(rank, world, workers):
        shard = Shard(rank, world)
        options = {"batch_size": 2, "shuffle": shuffle, "seed": 5, "on_error": "substitute"}
        return Feed(Numbers(36, bad=[3, 7, 8, 9, 20, 35]), workers=workers, shard=shard, **options)

    whole = make(0, 1, 0)
    alone = [value for batch in read(whole) for value in batch]
    expected = {one.index: one.substitute_index for one in whole.failures}
    assert set(expected) == {3, 7, 8, 9, 20, 35}

    feeds = [make(rank, 3, workers) for rank, workers in enumerate([0, 1, 2])]
    steps = zip(*(read(feed) for feed in feeds), strict=True)
    assert [value for step in steps for batch in step for value in batch] == alone
    assert {one.index: one.substitute_index for feed in feeds for one in feed.failures} == expected

    early, late = make(0, 1, 2), make(0, 1, 2)
    batches = iter(early)
    before = [next(batches).tolist() for _ in range(7)]
    late.load_state_dict(early.state_dict())
    assert [value for batch in before + read(late) for value in batch] == alone
    assert {one.index: one.substitute_index for one in early.failures + late.failures} == expected


@WORKERS
def test_a_source_without_a_good_sample_nearby_ends_the_epoch(workers):
    source = Numbers(60, bad=range(20, 45))
    feed = Feed(source, batch_size=10, workers=workers, on_error="substitute")
    with pytest.raises(SampleError, match=r"sample 20 .*bad apple 20; none of the 16 samples after it") as caught:
        read(feed)
    assert caught.value.index == 20
    assert told(feed) == [(20, "raised", None, 1)]
    with pytest.raises(SampleError, match="none of the 0 samples"):
        read(Feed(Numbers(1, bad=[0]), batch_size=1, workers=workers, on_error="substitute"))


def test_a_sample_of_another_shape_is_replaced_too():
    samples = [np.zeros(3), np.ones(4), np.full(3, 2.0)]
    feed = Feed(samples, batch_size=3, on_error="substitute")
    assert [batch[:, 0].tolist() for batch in feed] == [[0, 2, 2]]


# ---------------------------------------------------------------- bounds


@WORKERS
def test_more_bad_samples_than_are_tolerated_end_the_epoch_with_their_reasons(workers):
    feed = Feed(Numbers(40, bad=range(3, 40, 4)), batch_size=4, workers=workers, on_error=Tolerance("skip", most=4))
    batches = iter(feed)
    assert [next(batches).tolist() for _ in range(4)] == [[n, n + 1, n + 2] for n in (0, 4, 8, 12)]
    with pytest.raises(SampleError) as caught:
        next(batches)
    assert str(caught.value) == (
        "5 of 20 samples are bad, where at most 4 are tolerated: the first are sample 3: ValueError: bad apple 3 | "
        "sample 7: ValueError: bad apple 7 | sample 11: ValueError: bad apple 11; "
        "`failures` of the feed has more; mend them, or raise most"
    )
    assert [one.index for one in feed.failures] == [3, 7, 11, 15, 19]
    assert list(batches) == []
    assert feed.statistics().failed == 5


@WORKERS
def test_the_share_of_bad_samples_counts_when_enough_have_come(workers):
    tolerance = Tolerance("skip", highest_rate=0.25, rate_after=12)
    feed = Feed(Numbers(40, bad=[0, 1, 2, 3, 12, 13]), batch_size=4, workers=workers, on_error=tolerance)
    batches = iter(feed)
    assert [next(batches).tolist() for _ in range(1)] == [[4, 5, 6, 7]]
    with pytest.raises(SampleError, match=r"4 of 12 samples are bad, where at most 0\.25 of them are tolerated"):
        next(batches)


def test_the_share_counts_at_the_end_of_an_epoch_that_is_shorter_than_it_takes():
    feed = Feed(Numbers(8, bad=[1, 5]), batch_size=4, on_error=Tolerance("skip", highest_rate=0.2))
    batches = iter(feed)
    assert next(batches).tolist() == [0, 2, 3]
    with pytest.raises(SampleError, match="2 of 8"):
        next(batches)


def test_as_many_as_are_tolerated_do_no_harm_and_each_epoch_has_its_own_count():
    tolerance = Tolerance("substitute", most=2, highest_rate=0.25, rate_after=1)
    feed = Feed(Numbers(8, bad=[3, 7]), batch_size=8, on_error=tolerance)
    for epoch in range(3):
        assert read(feed) == [[0, 1, 2, 4, 4, 5, 6, 0]]
        assert [one.epoch for one in feed.failures[-2:]] == [epoch, epoch]


def test_a_row_with_a_substitute_counts_once():
    feed = Feed(Numbers(12, bad=[0, 1, 5]), batch_size=4, on_error=Tolerance("substitute", most=2))
    batches = iter(feed)
    assert next(batches).tolist() == [2, 2, 2, 3]
    with pytest.raises(SampleError, match="3 of 8 samples are bad"):
        next(batches)


def test_a_function_that_only_fails_ends_by_its_bound():
    def sample(info):
        raise OSError(f"no {info.idx_in_epoch}")

    with pytest.raises(SampleError, match=r"12 of 12 samples are bad.* sample 0: OSError: no 0"):
        read(Feed(sample, batch_size=4, on_error=Tolerance("skip", most=10)))


@WORKERS
def test_slots_come_back_after_an_epoch_that_a_bound_ended(workers):
    source = Numbers(8, bad=[1, 2])
    feed = Feed(source, batch_size=4, workers=workers, on_error=Tolerance("skip", most=1))
    for _ in range(3):
        with pytest.raises(SampleError, match="2 of 4"):
            next(iter(feed))
    assert feed.statistics().slots_lent == 0
    source.bad = frozenset()
    assert [batch[0] for batch in feed] == [0, 4]


def test_a_batch_that_broke_a_bound_was_not_consumed():
    source = Numbers(12, bad=[5])
    feed, later = (Feed(source, batch_size=4, on_error=Tolerance("skip", most=most)) for most in (0, 1))
    batches = iter(feed)
    next(batches)
    with pytest.raises(SampleError):
        next(batches)
    assert feed.state_dict()["position"] == 4
    later.load_state_dict(feed.state_dict())
    assert read(later) == [[4, 6, 7], [8, 9, 10, 11]]


# ---------------------------------------------------------------- record


def test_reasons_are_one_line_and_no_essay():
    class Talkative(Numbers):
        def __getitem__(self, index):
            if index == 1:
                raise ValueError("first\n  second\t" + "x" * 1000)
            return np.int64(index)

    feed = Feed(Talkative(2), batch_size=2, on_error="skip")
    read(feed)
    (failure,) = feed.failures
    assert failure.reason.startswith("ValueError: first second xxx")
    assert len(failure.reason) == 500


def test_the_list_of_failures_has_a_bound_and_the_ledger_has_all(tmp_path, monkeypatch):
    monkeypatch.setattr("interlock.feed._tolerance.MOST_LISTED", 3)
    path = tmp_path / "bad.jsonl"
    feed = Feed(Numbers(12, bad=range(1, 12, 2)), batch_size=4, on_error=Tolerance("skip", ledger=path))
    read(feed)
    assert [one.index for one in feed.failures] == [1, 3, 5]
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [1, 3, 5, 7, 9, 11]
    assert feed.statistics().failed == 6


def test_the_ledger_is_there_from_the_start_and_grows_with_what_was_consumed(tmp_path):
    path = tmp_path / "bad.jsonl"
    tolerance = Tolerance("substitute", attempts=2, ledger=path)
    feed = Feed(Named(8, bad=[1, 6]), batch_size=4, workers=2, depth=2, on_error=tolerance)
    assert path.read_text() == ""
    batches = iter(feed)
    next(batches)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "index": 1,
            "id": "x",
            "reason": "ValueError: bad apple 1",
            "attempts": 2,
            "action": "substituted",
            "substitute_index": 2,
            "substitute_id": "xx",
            "epoch": 0,
            "stage": "read",
        }
    ]
    later = Feed(Named(8, bad=[1, 6]), batch_size=4, on_error=tolerance)
    later.load_state_dict(feed.state_dict())
    read(later)
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [1, 6]


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"index": 0, "id"')
    read(Feed(Numbers(4, bad=[1, 3]), batch_size=2, on_error=Tolerance("skip", ledger=path)))
    torn, *lines = path.read_text().splitlines()
    assert torn == '{"index": 0, "id"'
    assert [json.loads(line)["index"] for line in lines] == [1, 3]


def test_a_sample_that_ended_the_epoch_is_in_the_ledger(tmp_path):
    path = tmp_path / "bad.jsonl"
    with pytest.raises(SampleError):
        read(Feed(Numbers(4, bad=[1]), batch_size=2, on_error=Tolerance("raise", ledger=path)))
    assert [json.loads(line)["action"] for line in path.read_text().splitlines()] == ["raised"]


@WORKERS
def test_a_ledger_that_cannot_be_written_any_more_ends_the_epoch(tmp_path, workers):
    """A folder stands where the file was."""
    path = tmp_path / "bad.jsonl"
    source = Numbers(8, bad=[5])
    feed = Feed(source, batch_size=4, workers=workers, on_error=Tolerance("skip", ledger=path))
    path.unlink()
    path.mkdir()
    batches = iter(feed)
    next(batches)
    with pytest.raises(SinkError, match=r"the ledger .*bad\.jsonl cannot be written: .*; see to its disk"):
        next(batches)
    assert feed.statistics().slots_lent == 0
    source.bad = frozenset()
    assert [batch[0] for batch in feed] == [0, 4]


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"action": "ignore"}, "action is 'ignore'; use 'raise', 'skip' or 'substitute'"),
        ({"attempts": 0}, "attempts is 0; give at least 1"),
        ({"rate_after": 0}, "rate_after is 0; give at least 1"),
        ({"pause_s": -1.0}, "pause_s is -1"),
        ({"pause_s": float("nan")}, "pause_s is nan"),
        ({"most": -1}, "most is -1"),
        ({"highest_rate": 1.5}, r"highest_rate is 1\.5; give a share from 0 to 1"),
    ],
)
def test_a_tolerance_says_what_cannot_be_meant(values, message):
    with pytest.raises(UsageError, match=message):
        Tolerance(**values)


def test_a_feed_says_what_its_source_cannot_do(tmp_path):
    with pytest.raises(UsageError, match=r"on_error is 3; use 'raise', 'skip', 'substitute', retry\(3\)"):
        Feed(Numbers(3), batch_size=1, on_error=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="only a source with a length has samples to put in place of others"):
        Feed(iter([1]), batch_size=1, on_error="substitute")
    with pytest.raises(UsageError, match="an iterable cannot be asked for a sample again"):
        Feed(iter([1]), batch_size=1, on_error=retry(1))
    with pytest.raises(UsageError, match="times is -1"):
        retry(-1)
    with pytest.raises(UsageError, match=r"the ledger .*no.bad\.jsonl cannot be written: No such file"):
        Feed(Numbers(3), batch_size=1, on_error=Tolerance(ledger=tmp_path / "no" / "bad.jsonl"))
