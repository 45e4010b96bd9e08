"""Functions with a parameter `out`: they write their sample into the slot, and nothing else is different."""

from __future__ import annotations

import functools
import threading
from collections import Counter

import numpy as np
import pytest

from interlock import Feed, Padded, Stage
from interlock.errors import SampleError
from interlock.feed import retry
from interlock.feed._layout import Layout
from interlock.feed._samples import FunctionSamples
from interlock.feed._stages import takes_out

WORKERS = pytest.mark.parametrize("workers", [0, 3])
LENGTH = 10


def at(info):
    """Return the position, or end the epoch."""
    if info.idx_in_epoch >= LENGTH:
        raise StopIteration
    return info.idx_in_epoch


def pair(position):
    return {"x": np.full((2, 3), position, np.float32), "y": np.int64(position)}


def fill(position, out=None):
    """Make the sample in the slot; its first time it has no place there."""
    if out is None:
        return pair(position)
    out["x"][...] = position
    out["y"][...] = position
    return out


def fill_only(position, out):
    made = fill(position, out)
    return None if made is out else made


def sample(info, out=None):
    return fill(at(info), out)


class Callable:
    def __call__(self, info, *, out):
        return fill_only(at(info), out)


def read(feed):
    return [(np.asarray(batch["x"])[:, 1, 2].tolist(), np.asarray(batch["y"]).tolist()) for batch in feed]


EXPECTED = [([*range(first, last)],) * 2 for first, last in [(0, 4), (4, 8), (8, 10)]]


# ---------------------------------------------------------------- where it is given


@WORKERS
@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("function", [sample, Callable(), functools.partial(sample)])
def test_a_sample_function_may_fill_its_row_of_the_slot(to, function, workers):
    assert read(Feed(function, batch_size=4, to=to, workers=workers)) == EXPECTED


@WORKERS
@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("last", [fill, fill_only])
def test_the_last_stage_may_fill_its_row_of_the_slot(to, last, workers):
    feed = Feed(range(LENGTH), batch_size=4, to=to, workers=workers, stages=[str, int, Stage(last, workers=2)])
    assert read(feed) == EXPECTED


@WORKERS
def test_what_is_filled_is_the_batch_that_its_consumer_gets(workers, monkeypatch):
    """The memory is the same, and nothing but the first sample is copied."""
    places, copied = {}, []
    write = Layout.write

    def note(layout, views, row, value):
        copied.append(row)
        write(layout, views, row, value)

    monkeypatch.setattr(Layout, "write", note)

    def filled(info, out=None):
        position = at(info)
        if out is not None:
            places[position] = out["x"].__array_interface__["data"][0]
        return fill(position, out)

    for batch in Feed(filled, batch_size=4, workers=workers):
        for row, position in enumerate(batch["y"].tolist()):
            if position:
                assert places[position] == batch["x"][row].__array_interface__["data"][0]
    assert set(places) == set(range(1, LENGTH))
    assert copied == [0]


@WORKERS
def test_only_the_first_sample_has_no_place_yet(workers):
    given: Counter[tuple[int, bool]] = Counter()
    lock = threading.Lock()

    def filled(info, out=None):
        position = at(info)
        with lock:
            given[position, out is None] += 1
        return fill(position, out)

    read(Feed(filled, batch_size=4, workers=workers))
    assert given == {(0, True): 1, **{(position, False): 1 for position in range(1, LENGTH)}}


def test_out_is_a_tree_like_a_sample_of_writable_arrays():
    seen = []

    def filled(info, out=None):
        at(info)
        seen.append(out)
        return {"b": (np.zeros((2, 3), np.int16), 1.5), "a": [True]} if out is None else out

    next(iter(Feed(filled, batch_size=2, workers=0)))
    out = seen[1]
    assert list(out) == ["b", "a"]
    assert (type(out["b"]), type(out["a"])) == (tuple, list)
    leaves = [out["b"][0], out["b"][1], out["a"][0]]
    assert [(one.shape, str(one.dtype)) for one in leaves] == [((2, 3), "int16"), ((), "float64"), ((), "bool")]
    assert all(type(one) is np.ndarray and one.flags.writeable for one in leaves)


@WORKERS
def test_a_lone_array_is_filled_as_well(workers):
    def filled(info, out=None):
        position = at(info)
        return np.full(3, position) if out is None else out.fill(position)

    assert [batch[:, 2].tolist() for batch in Feed(filled, batch_size=4, workers=workers)] == [
        one for one, _ in EXPECTED
    ]


@WORKERS
def test_only_the_last_function_is_given_it(workers):
    given = []

    def first(info, out):
        given.append(out)
        return at(info)

    def second(value, out=None):
        given.append(out)
        return value

    def third(value, *, out):
        given.append(out)
        return value

    feed = Feed(first, batch_size=4, workers=workers, stages=[second, third, pair])
    assert read(feed) == EXPECTED
    assert set(given) == {None}


@WORKERS
def test_ragged_samples_have_no_place_to_be_filled(workers):
    given = []

    def tokens(info, out=None):
        given.append(out)
        return np.arange(at(info))

    feed = Feed(tokens, batch_size=4, workers=workers, ragged={"": Padded(LENGTH)})
    assert [batch["lengths"].tolist() for batch in feed] == [one for one, _ in EXPECTED]
    assert set(given) == {None}


# ---------------------------------------------------------------- what it returns


@WORKERS
def test_another_sample_may_be_returned_and_is_copied(workers):
    def either(position, out=None):
        return pair(position) if position % 2 else fill(position, out)

    assert read(Feed(range(LENGTH), batch_size=4, workers=workers, stages=[either])) == EXPECTED


@WORKERS
def test_arrays_that_are_put_into_the_tree_are_copied_from_there(workers):
    """`out["x"] = ...` is easily written for `out["x"][...] = ...`, and fills nothing by itself."""

    def replacing(position, out=None):
        if out is None:
            return pair(position)
        out["x"] = np.full((2, 3), position, np.float32)
        out["y"][...] = position
        return out if position % 2 else None

    assert read(Feed(range(LENGTH), batch_size=4, workers=workers, stages=[replacing])) == EXPECTED


@WORKERS
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda out: {"x": out["x"][0], "y": out["y"]}, r"leaf 'x' has shape \(3,\), the first sample had \(2, 3\)"),
        (lambda out: {"x": out["x"]}, "its parts are 'x', the first sample had 'x', 'y'"),
        (lambda out: out.update(x=np.zeros((2, 3))), "leaf 'x' has dtype float64, the first sample had float32"),
        (lambda out: out.pop("y"), "its parts are one array, the first sample had 'x', 'y'"),
        (lambda out: out.clear(), "its parts are , the first sample had 'x', 'y'"),
    ],
)
def test_what_does_not_look_like_the_first_sample_is_refused(wrong, message, workers):
    def stage(position, out=None):
        return wrong(fill(position, out)) if position == 6 else fill(position, out)

    with pytest.raises(SampleError, match=f"sample 6, stage 'stage': {message}"):
        read(Feed(range(LENGTH), batch_size=4, workers=workers, stages=[stage]))


def nothing(_, *, out):
    assert out is None


@WORKERS
def test_none_is_no_first_sample(workers):
    feed = Feed(range(LENGTH), batch_size=4, workers=workers, stages=[Stage(nothing, 1, "nothing")])
    with pytest.raises(SampleError, match="sample 0, stage 'nothing': None was returned where `out` is None; make the"):
        read(feed)


# ---------------------------------------------------------------- what goes wrong


def spoiling(bad, tries=1):
    """Return a stage that fills half of its row and raises, for some numbers, so many times."""
    asked: Counter[int] = Counter()

    def stage(position, out=None):
        asked[position] += 1
        if position in bad and asked[position] <= tries:
            if out is not None:
                out["x"][...] = -1
            raise ValueError(position)
        return fill(position, out)

    return stage


@WORKERS
@pytest.mark.parametrize("bad", [0, 5])
def test_a_row_that_was_filled_by_halves_is_left_out_replaced_or_filled_again(bad, workers):
    def feed(on_error, tries=99):
        chain = [Stage(spoiling({bad}, tries), workers=2)]
        return Feed(range(LENGTH), batch_size=4, workers=workers, on_error=on_error, stages=chain)

    xs = [one for one, _ in EXPECTED]
    assert read(feed("skip")) == [([each for each in one if each != bad],) * 2 for one in xs]
    assert read(feed("substitute")) == [([each + (each == bad) for each in one],) * 2 for one in xs]
    assert read(feed(retry(2), tries=2)) == EXPECTED
    with pytest.raises(SampleError, match=f"sample {bad}, stage 'stage' failed"):
        read(feed("raise"))


@WORKERS
@pytest.mark.parametrize("bad", [0, 5])
def test_a_sample_function_that_fails_is_treated_as_ever(bad, workers):
    stage = spoiling({bad}, 1)

    def function(info, out=None):
        return stage(at(info), out)

    assert read(Feed(function, batch_size=4, workers=workers, on_error=retry(1))) == EXPECTED


# ---------------------------------------------------------------- who is offered it


def test_who_has_a_parameter_of_that_name_is_offered_it():
    assert takes_out(sample)
    assert takes_out(Callable())
    assert takes_out(functools.partial(sample))
    assert takes_out(nothing)


@pytest.mark.parametrize(
    "function",
    [
        at,
        lambda _, **out: out,
        lambda _, *out: out,
        lambda out, /: out,
        functools.partial(sample, out=None),
        functools.partial(np.square),
        np.square,  # would cast what it computes to what the slot has
        np.mean,
        str,
        int,
        dict.get,
    ],
)
def test_who_has_not_is_not(function):
    assert not takes_out(function)


def test_a_function_of_numpy_does_not_cast_unseen():
    feed = Feed([np.float32(1), np.float32(2), np.float64(3)], batch_size=3, stages=[np.square])
    with pytest.raises(SampleError, match="sample 2, stage 'square': the array has dtype float64, the first"):
        next(iter(feed))


def test_samples_of_a_function_come_with_a_place_and_without():
    samples = FunctionSamples(sample, 4, 0)
    assert samples.takes_out
    out = {"x": np.zeros((2, 3)), "y": np.zeros(())}
    assert samples.fetch_into(7, out) is out
    assert out["y"] == samples.fetch(7)["y"] == 7
