"""Small batches of arrays share a slot, and nobody can tell but by the time it takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from interlock import Feed, Shard
from interlock._core._spans import listen

ROWS, WIDTH, BATCH = 5003, 16, 7
DATA = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)


class Rows:
    """The same samples, one by one: their batches have slots of their own."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": DATA[index], "y": np.int64(index)}


def arrays():
    return {"x": DATA, "y": np.arange(ROWS)}


def slots(feed):
    """Return how many batches lie in a slot, by the bytes of one."""
    iterator = iter(feed)
    next(iterator)
    batch_bytes = feed._batch_size * (4 * WIDTH + 8)
    return iterator.pipeline._reader.slot_bytes // batch_bytes


def same(one, other):
    return np.array_equal(one["x"], other["x"]) and np.array_equal(one["y"], other["y"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "seed": 3},
        {"drop_last": True},
        {"shuffle": True, "drop_last": True, "shard": Shard(1, 3)},
        {"shard": Shard(2, 3, "pad")},
        {"to": "torch"},
    ],
)
def test_batches_ids_and_states_are_those_of_batches_with_slots_of_their_own(options, workers):
    shared, alone = (
        Feed(source, batch_size=BATCH, ids=True, workers=workers, **options) for source in (arrays(), Rows())
    )
    for _epoch in range(2):
        for (ids, batch), (ids_alone, batch_alone) in itertools.zip_longest(shared, alone):
            assert np.array_equal(ids, ids_alone)
            assert same(batch, batch_alone)
            assert shared.state_dict() == alone.state_dict()
    assert slots(shared) > 3
    assert slots(alone) == 1


def test_a_run_goes_on_in_the_middle_of_a_slot():
    whole = [batch.copy() for batch in Feed(DATA, batch_size=BATCH, shuffle=True)]
    feed = Feed(DATA, batch_size=BATCH, shuffle=True)
    for _ in zip(range(5), feed, strict=False):
        pass
    later = Feed(DATA, batch_size=BATCH, shuffle=True)
    later.load_state_dict(feed.state_dict())
    rest = list(later)
    assert len(rest) == len(whole) - 5
    assert all(np.array_equal(one, other) for one, other in zip(rest, whole[5:], strict=True))


def test_a_batch_that_is_kept_never_changes():
    kept = []
    for number, batch in enumerate(Feed(DATA, batch_size=BATCH)):
        if number % 50 == 3:
            kept.append((number, batch))
    for number, batch in kept:
        assert np.array_equal(batch, DATA[number * BATCH : number * BATCH + BATCH])


def test_a_slot_comes_back_when_the_last_of_its_batches_is_gone():
    feed = Feed(DATA, batch_size=BATCH, workers=0)
    for _ in feed:
        assert feed.statistics().slots <= 3
    assert feed.statistics().batches == len(feed)
    assert feed.statistics().samples == ROWS


def test_an_iteration_that_is_closed_gives_no_batch_of_its_slot_any_more():
    iterator = iter(Feed(DATA, batch_size=BATCH))
    next(iterator)
    iterator.close()
    assert list(iterator) == []


@pytest.mark.parametrize(
    "options",
    [
        {"verify": True},
        {"budget_bytes": 64 * BATCH * (4 * WIDTH + 8)},
        {"batch_size": ROWS // 100},
        {"to": "jax"},
    ],
    ids=["compared with what was written", "little memory", "short epoch", "slices are computations"],
)
def test_slots_have_one_batch_where_it_matters(options):
    assert slots(Feed(arrays(), **{"batch_size": BATCH, **options})) == 1


def test_slots_have_one_batch_where_they_are_traced():
    stop = listen(lambda _: None)
    try:
        assert slots(Feed(arrays(), batch_size=BATCH)) == 1
    finally:
        stop()
    assert slots(Feed(arrays(), batch_size=BATCH)) > 3


def test_to_torch_batches_of_a_slot_have_nothing_to_do_with_each_other():
    """Parts of one tensor share its version: to change one would spoil the gradient of another."""
    batches = iter(Feed(DATA, batch_size=BATCH, to="torch"))
    first, weight = next(batches), torch.ones(WIDTH, requires_grad=True)
    loss = (first * weight).sum()
    next(batches).mul_(2)
    loss.backward()
    assert first.untyped_storage().nbytes() == BATCH * WIDTH * 4  # what saving it would write


def test_a_pass_that_is_closed_lets_go_of_the_rest_of_its_slot():
    feed = Feed(DATA, batch_size=BATCH, workers=0)
    iterator = iter(feed)
    next(iterator)
    iterator.close()
    assert feed.statistics().slots_lent == 0


def test_nothing_is_explained_before_time_has_been_taken():
    feed = Feed(DATA, batch_size=BATCH, workers=0)
    iterator = iter(feed)
    for _ in range(5):
        next(iterator)
    assert feed.explain().findings.limit == "unknown"
