"""`null:` measures: rows land, are counted and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from interlock.devices import SimulatedDevice
from interlock.drain import Drain, read_status
from interlock.errors import UsageError
from interlock.lowlevel import DeviceArray


def test_rows_are_counted_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Drain("null:", shard_bytes=100) as drain:
        tickets = [drain.put(np.arange(10) + 10 * batch, np.ones((10, 4))) for batch in range(5)]
        drain.flush()
        assert all(ticket.committed for ticket in tickets)
        statistics = drain.statistics()
    assert (statistics.rows_put, statistics.rows_written, statistics.rows_committed) == (50, 50, 50)
    assert (statistics.bytes_written, statistics.shards) == (0, 0)
    assert len(drain.committed) == 50
    assert list(tmp_path.iterdir()) == []


def test_values_land_before_they_are_counted():
    device = SimulatedDevice("lazy")
    stream = device.stream("compute")
    memory = device.allocate(40)
    with Drain("null:") as drain:
        for batch in range(3):
            array = DeviceArray(device, memory, (10,), "float32", device.record(stream))
            ticket = drain.put(np.arange(10) + 10 * batch, array)
            ticket.wait("written", timeout_s=20)
            assert ticket.landed


def test_the_same_id_again_is_dropped_unseen():
    with Drain("null:") as drain:
        drain.put([1, 2], np.ones(2))
        drain.put([2, 3], np.zeros(2))
        drain.fail([4], "no such file")
        drain.flush()
        assert drain.statistics().rows_failed == 1
        drain.put([4], np.zeros(1))
    statistics = drain.statistics()
    assert (statistics.rows_committed, statistics.rows_duplicate, statistics.rows_failed) == (4, 1, 0)


def test_rows_still_have_to_fit_those_before():
    with Drain("null:") as drain:
        drain.put([1], np.ones((1, 3)))
        with pytest.raises(UsageError, match="rows of shape"):
            drain.put([2], np.ones((1, 4)))


def test_there_is_nothing_to_look_at_afterwards():
    with pytest.raises(UsageError, match=r"null: holds no rows.*counted and forgotten.*parquet:PATH"):
        read_status("null:")
    with pytest.raises(UsageError, match="sink 'null:out' has a path: null: keeps nothing"):
        Drain("null:out")


def test_rows_that_are_not_counted_yet_are_pending():
    source = [np.full(2, row) for row in range(6)]
    with Drain("null:") as drain:
        drain.put([1, 4], np.zeros((2, 2)))
        drain.flush()
        pending = drain.pending(source)
        assert [pending.id_of(row) for row in range(len(pending))] == [0, 2, 3, 5]
