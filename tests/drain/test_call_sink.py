"""A function as a sink: called with landed rows, in order, on the writer thread."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest

from interlock.devices import SimulatedDevice
from interlock.drain import Drain
from interlock.errors import BoundError, SinkError, UsageError
from interlock.lowlevel import DeviceArray


class Kept:
    """Keeps copies of what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], dict[str, Any]]] = []
        self.threads: set[str] = set()

    def __call__(self, ids, arrays):
        self.threads.add(threading.current_thread().name)
        self.calls.append((ids.tolist(), {name: array.copy() for name, array in arrays.items()}))


def test_it_is_called_once_a_put_in_order_on_the_writer_thread():
    kept = Kept()
    with Drain(kept) as drain:
        for start in range(0, 50, 10):
            drain.put(np.arange(start, start + 10), {"x": np.full((10, 2), start), "pair": (np.ones(10), np.zeros(10))})
    assert [ids for ids, _ in kept.calls] == [list(range(start, start + 10)) for start in range(0, 50, 10)]
    assert list(kept.calls[0][1]) == ["x", "pair.0", "pair.1"]
    assert [arrays["x"][0, 0] for _, arrays in kept.calls] == [0, 10, 20, 30, 40]
    (thread,) = kept.threads
    assert thread.startswith("interlock-drain")
    assert (len(drain.committed), drain.statistics().rows_committed) == (50, 50)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random:3"])
def test_values_have_landed_when_it_is_called(schedule):
    """The rows of a put are those at the put, though the device runs late and the program overwrites them."""
    device = SimulatedDevice(schedule)
    stream = device.stream("compute")
    memory = device.allocate(40)
    kept = Kept()
    with Drain(kept, verify=True) as drain:
        for batch in range(4):
            host = device.allocate_host(40)
            host.view()[:] = np.full(10, batch, np.float32).tobytes()
            device.copy(memory, host, stream)
            drain.put(np.arange(10) + 10 * batch, DeviceArray(device, memory, (10,), "float32", device.record(stream)))
    assert [arrays["output"].tolist() for _, arrays in kept.calls] == [[float(batch)] * 10 for batch in range(4)]


def test_rows_are_committed_when_it_has_returned_and_not_before():
    entered, let_go = threading.Event(), threading.Event()

    def slow(_ids, _arrays):
        entered.set()
        assert let_go.wait(30)

    with Drain(slow) as drain:
        ticket = drain.put([1, 2], np.ones(2))
        assert entered.wait(30)
        assert not ticket.written
        assert not ticket.committed
        assert 1 not in drain.committed
        let_go.set()
        ticket.wait("committed", timeout_s=30)
        assert 1 in drain.committed


def test_its_error_names_it_and_the_rows_and_what_came_before_stays():
    kept = []

    def save(ids, _arrays):
        if 20 in ids:
            raise ValueError("no such table")
        kept.extend(ids.tolist())

    drain = Drain(save)
    first = drain.put(np.arange(10), np.ones(10))
    first.wait("committed", timeout_s=30)
    drain.put(np.arange(20, 30), np.ones(10))
    with pytest.raises(SinkError, match=r"save failed on rows 20 to 29: ValueError: no such table") as caught:
        drain.close()
    assert isinstance(caught.value.__cause__, ValueError)
    assert kept == list(range(10))
    assert (9 in drain.committed, 20 in drain.committed) == (True, False)


def test_a_function_that_hangs_ends_in_a_bound_that_names_what_it_does():
    let_go = threading.Event()
    drain = Drain(lambda _ids, _arrays: let_go.wait(30), timeout_s=0.2)
    drain.put([1], np.ones(1))
    try:
        with pytest.raises(BoundError, match=r"the flush of .*lambda.* is not done.*the writer is writing row 1"):
            drain.flush()
    finally:
        let_go.set()
        drain.close()


def test_arrays_cannot_be_written_and_are_no_longer_the_rows_once_it_has_returned():
    seen = []

    def keep(ids, arrays):
        seen.append((ids, arrays["output"]))

    with Drain(keep, verify=True) as drain:
        ticket = drain.put([1, 2], np.ones(2))
        ticket.wait("committed", timeout_s=30)
        drain.put([3], np.ones(1))  # hears that the slot is free, which is poisoned then
    ids, rows = seen[0]
    assert not ids.flags.writeable
    assert not rows.flags.writeable
    assert np.isnan(rows).all()


def test_a_row_that_came_before_is_dropped_and_an_earlier_run_is_not_known():
    for _ in range(2):
        kept = Kept()
        with Drain(kept) as drain:
            drain.put([1, 2], np.ones(2))
            drain.put([2, 3], np.ones(2))
            drain.fail([4], "no such file")
        assert [ids for ids, _ in kept.calls] == [[1, 2], [3]]
        assert (drain.statistics().rows_duplicate, drain.statistics().rows_failed) == (1, 1)


def test_rows_with_nan_fail_if_they_should():
    kept = Kept()
    with Drain(kept, nan="fail") as drain:
        drain.put([1, 2], np.array([np.nan, 2.0]))
    assert [ids for ids, _ in kept.calls] == [[2]]


def test_a_put_larger_than_the_budget_comes_in_parts():
    kept = Kept()
    values = np.random.default_rng(0).random((100, 50))
    with Drain(kept, budget_bytes=8_000) as drain:
        drain.put(np.arange(100), values)
    assert len(kept.calls) > 5
    assert [one for ids, _ in kept.calls for one in ids] == list(range(100))
    np.testing.assert_array_equal(np.concatenate([arrays["output"] for _, arrays in kept.calls]), values)


async def later(_ids, _arrays):
    """Nobody would await this."""


class Later:
    async def __call__(self, _ids, _arrays):
        """Nor this."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (later, "later is a coroutine function: rows are written on a thread"),
        (Later(), "Later is a coroutine function: rows are written on a thread"),
        (5, "5 is no sink; use text such as parquet:PATH, or a function"),
        (None, "None is no sink"),
    ],
)
def test_what_cannot_be_called_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        Drain(given)


def table_writer(table, ids, arrays):
    """Take one argument more than a sink gets."""
    table.append((ids.tolist(), arrays["output"].tolist()))


def test_partial_functions_and_methods_are_called_by_their_names():
    table: list[Any] = []
    with Drain(functools.partial(table_writer, table)) as drain:
        drain.put([1], np.ones(1))
    assert drain.sink == f"{__name__}.table_writer"
    assert table == [([1], [1.0])]
    with Drain(Kept().__call__) as drain:
        assert drain.sink == f"{__name__}.Kept.__call__"


def test_nothing_is_written_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Drain(Kept(), total=5, fingerprint={"model": "m"}) as drain:
        drain.put([1], np.ones(1))
    assert list(tmp_path.iterdir()) == []
