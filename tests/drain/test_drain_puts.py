"""Puts, duplicates, failures, tickets, bad input."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

from interlock.drain import Drain, _publish, read_status, verify_sink
from interlock.errors import LeaseError, UsageError


def test_a_ticket_goes_from_put_to_committed(sink):
    with Drain(sink) as drain:
        ticket = drain.put([1, 2], np.zeros(2))
        ticket.wait("landed")
        ticket.wait("written")
        assert ticket.landed
        assert ticket.written
        assert not ticket.committed
        assert repr(ticket) == "Ticket(written)"
        drain.flush()
        ticket.wait()
        assert ticket.committed


def test_no_value_can_be_read_from_a_ticket(sink):
    with Drain(sink) as drain:
        ticket = drain.put([1], np.zeros(1))
        public = [name for name in dir(ticket) if not name.startswith("_")]
        assert public == ["committed", "landed", "wait", "written"]
        with pytest.raises(TypeError):
            np.asarray(ticket, np.float64)
        state: Any = "done"
        with pytest.raises(UsageError, match="landed, written or committed"):
            ticket.wait(state)


def test_a_put_of_no_rows_is_committed_at_once(sink, rows):
    with Drain(sink) as drain:
        assert drain.put([], np.zeros((0, 3))).committed
        drain.put(["a"], np.zeros((1, 3)))
        assert drain.put(np.array([], np.int64), np.zeros((0, 3))).written
    assert list(rows(sink)) == ["a"]


def test_a_drain_without_rows_leaves_a_sink_that_is_whole(sink):
    with Drain(sink, total=3):
        pass
    assert verify_sink(sink).ok
    assert read_status(sink).rows_missing == 3


def test_string_ids_resume(sink, rows):
    names = [f"ä/{at}.png" for at in range(6)]
    with Drain(sink) as drain:
        drain.put(names[:2], np.arange(2))
        drain.flush()
        drain.put(names[2:4], np.arange(2, 4))
    with Drain(sink) as drain:
        assert len(drain.committed) == 4
        assert names[3] in drain.committed
        assert names[4] not in drain.committed
        drain.put(names[4:], np.arange(4, 6))
    assert rows(sink) == {name: at for at, name in enumerate(names)}
    assert verify_sink(sink).ok


def test_ids_of_two_kinds_are_refused(sink):
    with Drain(sink) as drain:
        drain.put([1], np.zeros(1))
        with pytest.raises(UsageError, match=r"'a' is a str: the ids of .* so far are int"):
            drain.put(["a"], np.zeros(1))
    with Drain(sink) as drain, pytest.raises(UsageError, match="so far are int"):
        drain.put(["a"], np.zeros(1))


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"x": np.zeros(3)}, "output 'x' has 3 rows, and there are 2 ids"),
        (np.float32(1), "output 'output' has no axis of rows"),
        ({"x": [1, 2]}, "output 'x.0' has no axis of rows"),
        ({}, "no array"),
        ({"id": np.zeros(2)}, "called 'id'.*holds the ids"),
        ({"": np.zeros(2)}, "called ''.*needs a name"),
        ({"a.b": np.zeros(2), "a": {"b": np.zeros(2)}}, "called 'a.b'"),
        ({"x": "text"}, "output 'x' is a builtins.str"),
        ({"x": None}, "output 'x' is a builtins.NoneType"),
        ({"x": np.zeros(2, complex)}, "output 'x' has the dtype complex128.*real and imaginary"),
        ({"x": np.array([None, 1])}, "output 'x' has the dtype object.*stack"),
        ({"x": np.array(["a", "b"])}, "output 'x' has the dtype <U1"),
        ({"x": np.zeros(2, "M8[s]")}, "dtype datetime64.*astype"),
        ({"x": np.zeros(2, np.longdouble)}, "output 'x' has the dtype float128"),
        ({"x": np.ma.masked_array(np.zeros(2))}, "masked array"),
        ({"x": np.zeros((2, 0))}, r"rows of shape \(0,\)"),
        (Pair(np.zeros(2), 5), "output '1' has no axis of rows"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_and_nothing_is_written(sink, outputs, message, rows):
    with Drain(sink) as drain:
        with pytest.raises(UsageError, match=message):
            drain.put([1, 2], outputs)
        drain.put([1], np.zeros(1))
    assert rows(sink) == {1: 0.0}


def test_low_precision_floats_are_refused_by_name(sink):
    jnp = pytest.importorskip("jax.numpy")
    torch = pytest.importorskip("torch")
    with Drain(sink) as drain:
        with pytest.raises(UsageError, match=r"output 'x' has the dtype bfloat16.*cast it first"):
            drain.put([1], {"x": jnp.zeros(1, jnp.bfloat16)})
        with pytest.raises(UsageError, match=r"output 'x'.*bfloat16.*cast"):
            drain.put([1], {"x": torch.zeros(1, dtype=torch.bfloat16)})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": np.zeros((1, 3))}, r"output 'x' has rows of shape \(3,\): the rows before have \(2,\)"),
        ({"x": np.zeros((1, 2), np.float32)}, "output 'x' has the dtype float32: the rows before have float64"),
        ({"y": np.zeros((1, 2))}, "the outputs are y: the rows before have x"),
        ({"x": np.zeros((1, 2)), "y": np.zeros(1)}, "the outputs are x, y"),
    ],
)
def test_rows_unlike_those_before_are_refused_also_in_the_next_run(sink, second, message, rows):
    with Drain(sink) as drain:
        drain.put([1], {"x": np.zeros((1, 2))})
        with pytest.raises(UsageError, match=message):
            drain.put([2], second)
    with Drain(sink) as drain, pytest.raises(UsageError, match=message):
        drain.put([2], second)
    assert list(rows(sink, "x")) == [1]


def test_the_same_row_again_is_dropped_and_counted(sink, rows):
    values = np.random.default_rng(0).random((10, 3))
    values[3] = np.nan
    with Drain(sink) as drain:
        drain.put(range(6), values[:6])
        drain.put(range(3, 10), values[3:])
        drain.put([0, 0, 9], values[[0, 0, 9]])
        drain.flush()
        assert drain.statistics().rows_duplicate == 6
    with Drain(sink) as drain:
        drain.put([2, 3, 11, 2, 11], values[[2, 3, 4, 2, 4]])
        assert drain.statistics().rows_duplicate == 4
    found = rows(sink)
    assert set(found) == {*range(10), 11}
    assert verify_sink(sink).ok


@pytest.mark.parametrize("where", ["same put", "same run", "next run"])
@pytest.mark.parametrize("names", [["a", "b", "c"], [1, 2, 3]], ids=["str", "int"])
def test_the_same_id_with_other_bytes_is_an_error_that_names_both_places(sink, rows, where, names):
    with Drain(sink) as drain:
        if where == "same put":
            with pytest.raises(
                UsageError, match=rf"id {names[1]} was put twice.*'output'.*row 2 of this put.*row 1 of part-"
            ):
                drain.put([names[0], names[1], names[1]], np.array([1.0, 2.0, 3.0]))
        else:
            drain.put(names[:2], np.array([1.0, 2.0]))
        if where == "same run":
            with pytest.raises(UsageError, match=rf"id {names[1]} was put twice.*row 1 of this put.*row 1 of part-"):
                drain.put([names[2], names[1]], np.array([5.0, 7.0]))
    if where == "next run":
        with Drain(sink) as drain, pytest.raises(UsageError, match=rf"id {names[0]} was put twice"):
            drain.put([names[0]], np.array([-1.0]))
    found = rows(sink)
    assert {names[0]: 1.0, names[1]: 2.0}.items() <= found.items()


def test_negative_zero_is_not_zero(sink):
    with Drain(sink) as drain:
        drain.put([1], np.array([0.0]))
        with pytest.raises(UsageError, match="put twice"):
            drain.put([1], np.array([-0.0]))


def test_rows_with_nan_are_recorded_as_failed_and_may_come_again(sink, rows):
    values = np.ones((4, 2))
    values[1, 1] = values[3, 0] = np.nan
    with Drain(sink, nan="fail", total=4) as drain:
        drain.put(range(4), {"whole": np.arange(4), "output": values})
        drain.flush()
        assert drain.statistics().rows_failed == 2
        assert drain.statistics().rows_committed == 2
        drain.put([1], {"whole": np.array([1]), "output": np.full((1, 2), 5.0)})
        drain.put([3, 3], {"whole": np.array([3, 3]), "output": values[[3, 0]]})
    assert rows(sink) == {0: [1, 1], 1: [5, 5], 2: [1, 1], 3: [1, 1]}
    assert read_status(sink).rows_failed == 0
    assert verify_sink(sink).missing == 0


def test_the_good_rows_beside_a_nan_row_are_known_when_they_come_again(sink, rows):
    with Drain(sink, nan="fail") as drain:
        drain.put([1, 2], np.array([1.0, np.nan])).wait("written")
        drain.put([1], np.array([1.0]))
        assert drain.statistics().rows_duplicate == 1
    assert rows(sink) == {1: 1.0}


def test_a_nan_row_names_the_leaf_in_its_reason(sink):
    with Drain(sink, nan="fail") as drain:
        drain.put([5], {"a": np.zeros(1), "b": np.full(1, np.nan)})
    (failure,) = read_status(sink).failures
    assert failure.as_dict() == {"id": 5, "reason": "NaN in output 'b'", "attempts": 1}


def test_nan_is_kept_by_default(sink, rows):
    with Drain(sink) as drain:
        drain.put([1], np.array([np.nan]))
    assert np.isnan(rows(sink)[1])


def test_failures_are_recorded_with_reason_and_attempts_and_stay_pending(sink):
    with Drain(sink, total=4) as drain:
        drain.put([0], np.zeros(1))
        drain.fail([1, 2, 2], "broken image")
        drain.fail([0], "too late: it was put")
    with Drain(sink) as drain:
        assert drain.pending(np.zeros(4)).index.tolist() == [1, 2, 3]
        drain.fail([2], "still broken")
        drain.put([1], np.zeros(1))
        assert drain.statistics().rows_failed in {0, 1}
    status = read_status(sink)
    assert (status.rows_committed, status.rows_failed, status.rows_missing) == (2, 1, 2)
    assert [failure.as_dict() for failure in status.failures] == [{"id": 2, "reason": "still broken", "attempts": 2}]
    assert json.loads(json.dumps(status.as_dict()))["failures"][0]["attempts"] == 2


def test_a_row_that_failed_and_then_was_put_is_known_when_it_comes_again(sink, rows):
    """What the writer says about the failure must not hide the row that came after it."""
    with Drain(sink) as drain:
        drain.fail([1], "first try")
        drain.put([1], np.array([1.0]))
        drain.flush()
        drain.put([1], np.array([1.0]))
        assert drain.statistics().rows_duplicate == 1
    assert rows(sink) == {1: 1.0}


def test_statistics_add_up(sink):
    with Drain(sink) as drain:
        drain.put(range(5), np.zeros(5))
        drain.flush()
    with Drain(sink) as drain:
        drain.put(range(3, 8), np.zeros(5))
        drain.flush()
        told = drain.statistics()
    assert (told.rows_put, told.rows_duplicate, told.rows_written, told.rows_committed) == (5, 2, 3, 3)
    assert (told.rows_resumed, told.shards, told.held_bytes) == (5, 1, 0)
    assert told.bytes_written > 0
    assert told.fsync_s + told.commit_s > 0
    assert set(told.as_dict()) >= {"wait_slot_s", "land_s", "encode_s", "commit_s", "host_syncs", "rows_failed"}


def test_shards_roll_by_size_whatever_the_size_of_puts(sink, manifest, folder):
    with Drain(sink, shard_bytes=1_000) as drain:
        drain.put(range(100), np.zeros((100, 4)))
        for one in range(100, 150):
            drain.put([one], np.zeros((1, 4)))
    sizes = [line["rows"] for line in manifest(folder)]
    assert sizes == [25] * 6
    assert verify_sink(sink).ok


def test_shards_roll_by_age(sink):
    with Drain(sink, commit_interval_s=0.0) as drain:
        ticket = drain.put([1], np.zeros(1))
        ticket.wait("committed", timeout_s=20)
        assert len(drain.committed) == 1


def test_a_full_shard_commits_its_puts_without_a_flush(sink):
    with Drain(sink, shard_bytes=64) as drain:
        drain.put(range(4), np.zeros((4, 8))).wait("committed", timeout_s=20)


def test_leaving_by_exception_commits_what_was_put(sink, rows):
    def program():
        with Drain(sink) as drain:
            drain.put([1, 2], np.array([1.0, 2.0]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert rows(sink) == {1: 1.0, 2: 2.0}


def test_a_closed_drain_takes_nothing_and_closes_again(sink):
    drain = Drain(sink)
    drain.close()
    drain.close()
    for use in (lambda: drain.put([1], np.zeros(1)), drain.flush, lambda: drain.fail([1], "x")):
        with pytest.raises(LeaseError, match="is closed"):
            use()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"budget_bytes": 0}, {"budget_bytes": 1e9}, {"shard_bytes": -1}, {"shard_bytes": 1e6}, {"writers": 2.0}),
        *({"timeout_s": 0}, {"timeout_s": float("nan")}, {"nan": "drop"}, {"total": -1}, {"total": 2.5}),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused_before_the_folder_is_touched(sink, folder, wrong):
    with pytest.raises(UsageError):
        Drain(sink, **wrong)
    assert not folder.exists()


@pytest.mark.parametrize("text", ["out", "zip:out", "parquet:", "", "parquet"])
def test_a_text_that_names_no_sink_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="parquet:PATH"):
        Drain(text)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "interlock.drain._sinks._parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pyarrow is not installed; pip install 'interlock\[parquet\]'"):
        Drain(f"parquet:{tmp_path / 'out'}")


def test_threads_may_put_into_one_drain(sink, rows):
    with Drain(sink, budget_bytes=10_000) as drain:

        def work(first):
            for start in range(first, first + 100, 5):
                drain.put(range(start, start + 5), np.arange(start, start + 5))

        threads = [threading.Thread(target=work, args=(100 * at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert rows(sink) == {one: one for one in range(400)}


def test_a_name_that_the_sink_cannot_store_is_refused_and_the_drain_goes_on(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        with pytest.raises(UsageError, match="output 'a/b' cannot be a file name"):
            drain.put([1], {"a/b": np.zeros(1)})
        drain.put([1], {"a.b": np.zeros(1)})
    assert read_status(sink).rows_committed == 1


def test_rows_whose_put_was_interrupted_before_a_writer_had_them_may_come_again(sink, rows, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with Drain(sink) as drain:
        drain.put([1], np.ones(1))
        with monkeypatch.context() as patch:
            patch.setattr(drain._link.jobs, "post", interrupted)
            with pytest.raises(KeyboardInterrupt):
                drain.put([2, 3], np.ones(2))
        drain.put([2, 3, 3, 1], np.ones(4))
    assert rows(sink) == {1: 1.0, 2: 1.0, 3: 1.0}


# ---------------------------------------------------------------- calls from within a call


@pytest.mark.parametrize(("call", "given"), [("put", ([9], np.ones(1))), ("flush", ()), ("close", ())])
def test_a_call_from_within_a_call_of_the_same_thread_is_refused_and_does_not_wait_for_itself(sink, rows, call, given):
    class Ids(list[int]):
        def __iter__(self):
            with pytest.raises(LeaseError, match="while it is in a call on this thread"):
                getattr(drain, call)(*given)
            return super().__iter__()

    with Drain(sink) as drain:
        drain.put(Ids([1]), np.ones(1))
        drain.put([2], np.ones(1))
    assert sorted(rows(sink)) == [1, 2]


def test_a_signal_handler_that_closes_the_drain_ends_the_put_and_what_was_put_is_committed(sink, rows, monkeypatch):
    gate = threading.Event()
    run_step = _publish.run_step

    def held(name, action):
        assert gate.wait(20)
        run_step(name, action)

    monkeypatch.setattr(_publish, "run_step", held)

    def on_signal(*_):
        gate.set()
        drain.close()

    before = signal.signal(signal.SIGALRM, on_signal)
    try:
        with pytest.raises(LeaseError, match="signal handler"), Drain(sink, budget_bytes=256) as drain:  # noqa: PT012
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            for one in range(10_000):  # waits for room
                drain.put([one], np.ones(1))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sorted(rows(sink)) == list(range(len(rows(sink))))
    assert len(rows(sink)) > 1


@pytest.mark.parametrize("age_s", [-1.0, float("nan")])
def test_an_age_that_is_none_is_refused(sink, age_s):
    with pytest.raises(UsageError, match=r"commit_interval_s is .*must not be negative"):
        Drain(sink, commit_interval_s=age_s)
