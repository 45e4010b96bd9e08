"""Resume and sharding: every sample exactly once an epoch, whoever stops where and goes on with how many."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import Feed, Shard, prefetch
from interlock.errors import SampleError, UsageError


class Numbers:
    """The numbers below a length, in chunks of seven."""

    def __init__(self, length, bad=()):
        self.length = length
        self.bad = frozenset(bad)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"bad apple {index}")
        return np.int64(index)

    def chunk_starts(self):
        return range(0, self.length, 7)


def run(feeds, most=None):
    """Let ranks take up to so many steps of an epoch in lockstep.

    Returns:
        The samples that each was given, batch by batch, and whether all were told that the epoch is over.
    """
    iterators = [iter(feed) for feed in feeds]
    given: list[list[list[int]]] = [[] for _ in feeds]
    over = [False] * len(feeds)
    step = 0
    while not all(over) and (most is None or step < most):
        for rank, iterator in enumerate(iterators):
            batch = next(iterator, None)
            over[rank] = batch is None
            if batch is not None:
                given[rank].append(batch.tolist())
        step += 1
    for iterator in iterators:
        iterator.close()
    return given, all(over)


def ranks(world, length, tail="exact", **options):
    options = {"batch_size": 3, "workers": 0, **options}
    return [Feed(Numbers(length), shard=Shard(rank, world, tail), **options) for rank in range(world)]


def flat(given):
    return [sample for batches in given for batch in batches for sample in batch]


SHUFFLES = st.sampled_from([False, True, "chunks:2"])


@given(
    length=st.integers(0, 60),
    world=st.integers(1, 5),
    batch_size=st.integers(1, 6),
    shuffle=SHUFFLES,
    drop_last=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_ranks_share_an_epoch_as_their_tail_says(length, world, batch_size, shuffle, drop_last):
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    whole = np.concatenate([np.arange(0), *Feed(Numbers(length), batch_size=batch_size, workers=0, shuffle=shuffle)])
    rest = length % (world * batch_size)
    for tail in ("exact", "pad", "drop"):
        feeds = ranks(world, length, tail, **options)
        given, _ = run(feeds)
        sizes = [sum(map(len, batches)) for batches in given]
        assert [len(batches) for batches in given] == [len(feed) for feed in feeds]
        assert all(len(batch) == batch_size for batches in given for batch in batches[:-1])
        assert max(map(len, given)) - min(map(len, given)) <= (tail == "exact")
        found = sorted(flat(given))
        if drop_last and not (tail == "pad" and -(-rest // world) == batch_size):
            assert found == sorted(whole[: length - rest].tolist())
        elif tail == "exact":
            assert found == [*range(length)]
            assert max(sizes) - min(sizes) <= 1
        elif tail == "drop":
            assert found == sorted(whole[: length - length % world].tolist())
            assert len(set(sizes)) == 1
        else:
            extra = [int(whole[n % length]) for n in range(-(-rest // world) * world - rest)]
            assert found == sorted([*range(length), *extra])
            assert len(set(sizes)) == 1


@given(
    length=st.integers(0, 70),
    stops=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 6), st.sampled_from([0, 2])), max_size=6
    ),
    shuffle=SHUFFLES,
)
@settings(max_examples=80, deadline=None)
def test_whatever_interrupts_every_sample_comes_once_an_epoch(length, stops, shuffle):
    """After any sequence of stops, each resumed with a number of ranks, batch size and workers of its own."""
    state, epoch = None, 0
    seen: dict[int, list[int]] = {}
    for world, batch_size, steps, workers in [*stops, (3, 2, None, 0), (2, 3, None, 0)]:
        feeds = ranks(world, length, batch_size=batch_size, workers=workers, shuffle=shuffle, seed=4)
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(state)
            assert feed.epoch == epoch
        given, _ = run(feeds, steps)
        seen.setdefault(epoch, []).extend(flat(given))
        states = [feed.state_dict() for feed in feeds]
        assert all(one == states[0] for one in states)
        state = json.loads(json.dumps(states))
        epoch = state[0]["epoch"]
    last = max(seen)
    assert last >= 1
    for number in range(last):
        assert sorted(seen[number]) == [*range(length)], number
    assert len(set(seen[last])) == len(seen[last])
    if shuffle and length > 30:
        assert seen[0] != seen[1]


@given(
    length=st.integers(1, 70),
    first=st.integers(1, 5),
    second=st.integers(1, 5),
    steps=st.integers(0, 5),
    tail=st.sampled_from(["pad", "drop"]),
)
@settings(max_examples=60, deadline=None)
def test_a_resumed_epoch_is_padded_or_cut_as_a_whole_one(length, first, second, steps, tail):
    before = ranks(first, length, tail, shuffle=True)
    given, over = run(before, steps)
    state = before[0].state_dict()
    if over or state["epoch"] == 1:
        assert state["position"] == 0
        return
    rest = length - state["position"]
    assert sorted(flat(given)) == sorted(set(flat(given)))
    assert len(flat(given)) == state["position"] == min(steps * 3 * first, length)
    after = ranks(second, length, tail, shuffle=True)
    for feed in after:
        feed.load_state_dict(state)
    more, _ = run(after)
    sizes = {sum(map(len, batches)) for batches in more}
    assert len(sizes) == 1
    if tail == "pad":
        assert set(flat(given)) | set(flat(more)) == set(range(length))
        assert sizes == {-(-rest // second)}
    else:
        assert len(set(flat(given)) | set(flat(more))) == len(flat(given)) + len(flat(more))
        assert len(flat(more)) == rest - rest % second


def test_four_then_three_then_five_ranks():
    """The case of the issue, with two resumes in a row and two epochs behind them."""
    given: list[int] = []
    state: dict[str, object] = {}
    for world, steps in [(4, 5), (3, 4), (5, None)]:
        feeds = ranks(world, 1000, batch_size=8, shuffle=True, seed=3)
        for feed in feeds if state else []:
            feed.load_state_dict(state)
        given += flat(run(feeds, steps)[0])
        state = feeds[-1].state_dict()
    assert sorted(given) == [*range(1000)]
    assert (state["epoch"], state["position"]) == (1, 0)
    whole = ranks(1, 1000, batch_size=8, shuffle=True, seed=3)[0]
    run([whole])
    assert flat(run(feeds)[0]) != given
    assert sorted(flat(run([whole])[0])) == [*range(1000)]


def test_a_state_counts_what_was_consumed_and_not_what_was_made_ahead():
    feed = Feed(np.arange(100), batch_size=5, workers=3, depth=6)
    batches = iter(feed)
    assert feed.state_dict()["position"] == 0
    for number in range(1, 5):
        next(batches)
        assert feed.state_dict()["position"] == 5 * number


def test_the_loop_of_a_training_script_goes_on_in_the_right_epoch_at_the_right_batch():
    def script(feed, state, until):
        if state is not None:
            feed.load_state_dict(state)
        done = []
        for epoch in range(feed.epoch, 3):
            for batch in feed:
                done.append((epoch, batch.tolist()))
                if len(done) == until:
                    return done, feed.state_dict()
        return done, feed.state_dict()

    def make():
        return Feed(np.arange(22), batch_size=4, shuffle=True, seed=9)

    expected, end = script(make(), None, None)
    assert (len(expected), end["epoch"], end["position"]) == (18, 3, 0)
    for until in range(1, 19):
        first, state = script(make(), None, until)
        second, again = script(make(), state, 2)
        third, _ = script(make(), again, None)
        assert first + second + third == expected, until


def test_the_same_feed_may_be_set_back():
    feed = Feed(np.arange(10), batch_size=3)
    batches = iter(feed)
    next(batches)
    state = feed.state_dict()
    next(batches)
    feed.load_state_dict(state)
    assert feed.state_dict() == state
    assert [batch.tolist() for batch in feed] == [[3, 4, 5], [6, 7, 8], [9]]
    assert next(iter(feed)).tolist() == [0, 1, 2]


def test_another_epoch_that_is_set_begins_at_its_beginning():
    feed = Feed(np.arange(6), batch_size=2)
    next(iter(feed))
    state = feed.state_dict()
    feed.load_state_dict(state)
    feed.epoch = 5
    assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (5, 0)
    assert len(list(feed)) == 3
    feed.load_state_dict(state)
    feed.epoch = 0  # as a sampler's set_epoch: no change
    assert len(list(feed)) == 2
    feed.epoch = 0
    assert len(list(feed)) == 3


def test_ids_go_with_the_samples_after_a_resume():
    def make(rank, world):
        return Feed(np.arange(50), batch_size=4, shuffle=True, ids=True, shard=Shard(rank, world, "pad"))

    feed = make(0, 1)
    batches = iter(feed)
    before = [sample for _ in range(3) for sample in next(batches)[0].tolist()]
    seen = []
    for rank in range(3):
        resumed = make(rank, 3)
        resumed.load_state_dict(feed.state_dict())
        for ids, batch in resumed:
            assert ids.tolist() == batch.tolist()
            seen += ids.tolist()
    assert len(seen) == 39
    assert set(seen) == {*range(50)} - {*before} | {before[0]}


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_skipped_count_as_consumed(workers):
    def make():
        return Feed(Numbers(20, bad=[2, 3, 9, 16, 17, 18, 19]), batch_size=4, workers=workers, on_error="skip")

    feed, resumed, last = make(), make(), make()
    batches = iter(feed)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [4, 5, 6, 7]]
    resumed.load_state_dict(feed.state_dict())
    assert [batch.tolist() for batch in resumed] == [[8, 10, 11], [12, 13, 14, 15]]
    assert [failure.index for failure in resumed.failures] == [9, 16, 17, 18, 19]
    last.load_state_dict(resumed.state_dict())
    assert last.state_dict()["epoch"] == 1


def test_a_batch_that_failed_is_tried_again():
    source = Numbers(20, bad=[9])
    feed = Feed(source, batch_size=4)
    batches = iter(feed)
    next(batches), next(batches)
    with pytest.raises(SampleError, match="sample 9"):
        next(batches)
    source.bad = frozenset()
    feed.load_state_dict(feed.state_dict())
    assert next(iter(feed)).tolist() == [8, 9, 10, 11]


def test_an_iterable_is_read_again_up_to_there_and_says_so():
    def make():
        return Feed(Lines(10), batch_size=3)

    feed, resumed = make(), make()
    batches = iter(feed)
    next(batches), next(batches)
    state = feed.state_dict()
    assert (state["position"], state["samples"]) == (6, None)
    resumed.load_state_dict(state)
    with pytest.warns(RuntimeWarning, match="an iterable has no index: its first 6 samples are read again"):
        batches = iter(resumed)
    assert [batch.tolist() for batch in batches] == [[6, 7, 8], [9]]
    assert (resumed.state_dict()["epoch"], resumed.state_dict()["position"]) == (1, 0)
    assert len(list(resumed)) == 4


class Lines:
    """An iterable without index."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


@pytest.mark.parametrize("consumed", [4, 5])
def test_a_last_batch_that_is_not_full_ends_the_epoch_of_an_iterable(consumed):
    feed = Feed(Lines(4 * 5 - (consumed == 5)), batch_size=4)
    batches = iter(feed)
    for _ in range(consumed):
        next(batches)
    state = feed.state_dict()
    assert (state["epoch"], state["position"]) == ((0, 16) if consumed == 4 else (1, 0))


def test_a_sample_function_is_asked_from_there_on():
    seen = []

    def sample(info):
        if info.idx_in_epoch >= 10:
            raise StopIteration
        seen.append((info.idx_in_epoch, info.idx_in_batch, info.iteration, info.epoch_idx))
        return np.int64(info.idx_in_epoch)

    feed = Feed(sample, batch_size=4, workers=0, ids=True)
    next(iter(feed))
    state = feed.state_dict()
    seen.clear()
    resumed = Feed(sample, batch_size=4, workers=0, ids=True)
    resumed.load_state_dict(state)
    assert [(ids.tolist(), batch.tolist()) for ids, batch in resumed] == [([4, 5, 6, 7],) * 2, ([8, 9],) * 2]
    assert seen[0] == (4, 0, 1, 0)


def test_a_state_is_small_plain_and_costs_nothing():
    feed = Feed(Numbers(2**60), batch_size=4, workers=0, shuffle=True, seed=2**62)
    batches = iter(feed)
    next(batches)
    state = feed.state_dict()
    assert len(json.dumps(state)) < 1024
    assert json.loads(json.dumps(state)) == state
    began = time.perf_counter()
    for _ in range(1000):
        feed.state_dict()
    assert time.perf_counter() - began < 1


def test_loading_takes_no_longer_the_further_the_epoch_is():
    feed = Feed(Numbers(2**60), batch_size=4, workers=0, shuffle=True)
    feed.load_state_dict({**feed.state_dict(), "position": 2**59})
    began = time.perf_counter()
    assert len(next(iter(feed))) == 4
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 11}, "a feed with 11 samples: this one has 10 samples"),
        ({"samples": None}, "a feed with no known length: this one has 10 samples"),
        ({"seed": 2}, "seed=2: this one has seed=1"),
        ({"shuffle": "none", "seed": None}, "shuffle='none': this one has shuffle='chunks:2'"),
        ({"chunks": "ab"}, "a source with other chunks"),
        ({"version": 2}, "version 2: this Interlock reads version 1"),
        ({"kind": "other"}, "no state of a feed"),
        ({"position": 11}, "position 11 of epoch 0"),
        ({"position": -1}, "position -1"),
        ({"epoch": "1"}, "epoch '1'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(changes, message):
    feed = Feed(Numbers(10), batch_size=2, shuffle="chunks:2", seed=1)
    with pytest.raises(UsageError, match=message):
        feed.load_state_dict({**feed.state_dict(), **changes})
    assert feed.epoch == 0


def test_what_is_no_state_is_refused():
    feed = Feed(np.arange(4), batch_size=2)
    for value in (None, 3, "state", dict[str, int]()):
        with pytest.raises(UsageError, match="no state of a feed"):
            feed.load_state_dict(value)
    whole = feed.state_dict()
    del whole["position"]
    with pytest.raises(UsageError, match="it lacks position"):
        feed.load_state_dict(whole)


def test_the_seed_does_not_matter_where_nothing_is_shuffled():
    feed = Feed(np.arange(4), batch_size=2, seed=1)
    feed.load_state_dict(Feed(np.arange(4), batch_size=2, seed=7).state_dict())


def test_ranks_that_were_not_at_the_same_step_are_refused():
    first, second = ranks(2, 40)
    run([first], 2)
    run([second], 3)
    states = [first.state_dict(), second.state_dict()]
    with pytest.raises(
        UsageError, match="rank 0 and rank 1 differ: position 12 of epoch 0, and position 18 of epoch 0"
    ):
        first.load_state_dict(states)
    with pytest.raises(UsageError, match="no state in the list"):
        first.load_state_dict([])


@pytest.mark.parametrize("arguments", [(2, 2), (-1, 2), (0, 0), (0, 1, "keep")])
def test_shards_that_cannot_be_are_refused(arguments):
    with pytest.raises(UsageError, match=r"there is no rank|tail is 'keep'"):
        Shard(*arguments)


def test_only_a_source_with_a_length_is_shared():
    with pytest.raises(UsageError, match="only a source with a length can be shared by several processes"):
        Feed(Lines(3), batch_size=1, shard=Shard(0, 2))
    with pytest.raises(UsageError, match="shard is 3"):
        Feed(np.arange(3), batch_size=1, shard=3)  # type: ignore[arg-type] # what is refused


def test_the_rank_is_torch_s_then_jax_s_else_one_of_one(monkeypatch):
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    assert Shard.of_process("pad") == Shard(0, 1, "pad")
    for name, value in (("process_index", 2), ("process_count", 4)):
        monkeypatch.setattr(jax, name, lambda value=value: value)
    assert Shard.of_process() == Shard(0, 1)  # jax.distributed is not initialised: JAX is not asked
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True, raising=False)
    assert Shard.of_process() == Shard(2, 4)
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 3)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert Shard.of_process("drop") == Shard(1, 3, "drop")
    feed = Feed(np.arange(30), batch_size=5, shard="auto", workers=0)
    assert [batch.tolist() for batch in feed] == [[5, 6, 7, 8, 9], [20, 21, 22, 23, 24]]


def test_no_framework_is_imported_to_learn_the_rank(monkeypatch):
    monkeypatch.setattr(
        sys, "modules", {k: v for k, v in sys.modules.items() if k.split(".")[0] not in {"torch", "jax"}}
    )
    assert Shard.of_process() == Shard()
    assert "torch" not in sys.modules


class Stateful:
    """A loader with state: how many batches of the epoch it gave."""

    def __init__(self, length=8):
        self.length = length
        self.given = 0
        self.epoch = 0

    def __iter__(self):
        while self.given < self.length:
            self.given += 1
            yield np.array([self.epoch, self.given - 1])
        self.given, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"given": self.given, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.given, self.epoch = state["given"], state["epoch"]


@pytest.mark.parametrize("depth", [1, 5])
def test_prefetch_gives_the_state_of_the_batch_that_was_consumed(depth):
    batches = prefetch(Stateful(), to="numpy", depth=depth)
    assert batches.state_dict() == {"given": 0, "epoch": 0}
    iterator = iter(batches)
    assert batches.state_dict() == {"given": 0, "epoch": 0}
    for number in range(1, 9):
        next(iterator)
        assert batches.state_dict() == {"given": number, "epoch": 0}
    assert next(iterator, None) is None
    assert batches.state_dict() == {"given": 0, "epoch": 1}


def test_prefetch_goes_on_where_its_state_was_taken_twice_in_a_row():
    seen, state = [], None
    for most in (3, 2, 9):
        batches = prefetch(Stateful(), to="numpy", depth=3)
        if state is not None:
            batches.load_state_dict(state)
        iterator = iter(batches)
        for _ in range(most):
            batch = next(iterator, None)
            if batch is None:
                break
            seen.append(batch.tolist())
        state = batches.state_dict()
        iterator.close()
    assert seen == [[0, number] for number in range(8)]
    assert state == {"given": 0, "epoch": 1}


def test_prefetch_may_be_set_back_in_the_middle():
    batches = prefetch(Stateful(), to="numpy", depth=4)
    iterator = iter(batches)
    next(iterator)
    state = batches.state_dict()
    next(iterator)
    batches.load_state_dict(state)
    assert next(iterator, None) is None
    assert batches.state_dict() == state
    assert [batch.tolist() for batch in batches] == [[0, number] for number in range(1, 8)]


def test_prefetch_over_a_feed_has_the_feed_s_state():
    feed = Feed(np.arange(40), batch_size=4, shuffle=True)
    batches = prefetch(feed, to="numpy", depth=3)
    iterator = iter(batches)
    first = [next(iterator).tolist() for _ in range(4)]
    state = batches.state_dict()
    assert state["position"] == 16
    later = prefetch(Feed(np.arange(40), batch_size=4, shuffle=True), to="numpy")
    later.load_state_dict(state)
    assert sorted(flat([first, [batch.tolist() for batch in later]])) == [*range(40)]


def test_a_loader_without_state_is_named():
    batches = prefetch([np.zeros(2)], to="numpy")
    for call in (batches.state_dict, lambda: batches.load_state_dict({})):
        with pytest.raises(UsageError, match=r"a list has no state_dict\(\)"):
            call()
