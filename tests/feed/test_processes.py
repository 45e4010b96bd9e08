"""Worker processes: the same batches as with threads, whatever becomes of the workers, and nothing left behind."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlock import Feed
from interlock.errors import PeerError, SampleError, UsageError, WorkerError
from interlock.feed import Offsets, Padded, Tolerance, retry

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # processes get the path too
sources: Any = importlib.import_module("process_sources")

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no shared memory without a name")
BAD = (3, 4, 5, 17, 30)


def flat(batch):
    """Return a batch as plain values."""
    if isinstance(batch, dict):
        return {name: flat(value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return [flat(value) for value in batch]
    return np.asarray(batch).tolist()


def epochs(source, workers, count=2, **options):
    """Return the batches of some epochs, and what is said of bad samples."""
    with Feed(source, workers=workers, **options) as feed:
        batches = [[flat(batch) for batch in feed] for _ in range(count)]
        return batches, [one.as_dict() for one in feed.failures], feed.statistics().retried


def alive(pid):
    """Tell whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def workers_of(feed, count) -> list[Any]:
    """Return what drives the worker processes of a feed."""
    return list(feed._passes.processes(count, feed._source, None)._workers)


def wait_until(condition, timeout_s=20.0):
    deadline, bell = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        bell.wait(0.01)


def named_memory(pid):
    """Return the shared memory with a name that a process has mapped; there must be some without one."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    assert any("/memfd:interlock" in line for line in maps)
    return [line for line in maps if "/dev/shm" in line]  # noqa: S108 - nothing is written


# ---------------------------------------------------------------- the same as with threads


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: sources.Picky(bad=BAD), {"on_error": "skip", "shuffle": True, "ids": True}),
        (lambda: sources.Picky(bad=BAD), {"on_error": "substitute", "shuffle": True, "seed": 3}),
        (lambda: sources.Picky(bad=range(40)), {"on_error": "skip"}),
        (lambda: sources.Bulk(bad=(17,)), {"on_error": "substitute", "drop_last": True}),
        (lambda: sources.counted, {"on_error": retry(1, then="skip")}),
        (lambda: sources.filled, {}),
        (lambda: np.arange(60).reshape(30, 2), {"shuffle": True, "verify": True}),
        (sources.Picky, {"device": "simulated:random:3", "verify": True}),
        (lambda: [*range(20)], {"stages": [sources.doubled, sources.halves], "on_error": "skip", "verify": True}),
        (sources.Words, {"on_error": "skip", "ragged": {"tokens": Padded(6, value=-1), "text": Offsets(20)}}),
    ],
    ids=["skip", "substitute", "nothing", "bulk", "function", "out", "arrays", "device", "stages", "ragged"],
)
def test_processes_give_what_threads_give_and_what_the_consumer_makes_itself(make, options):
    options = {"batch_size": 7, **options}
    expected = epochs(make(), 0, **options)
    assert epochs(make(), 3, **options) == expected
    assert epochs(make(), "processes:2", **options) == expected


def test_samples_that_come_at_a_later_attempt_count_the_same(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    options = {"batch_size": 5, "on_error": retry(2), "count": 1}
    expected = epochs(sources.Flaky(tmp_path / "here"), 0, **options)
    assert epochs(sources.Flaky(tmp_path / "there"), "processes:2", **options) == expected
    assert expected[2] == 4


@pytest.mark.parametrize("bad", [3, 4, 5])
def test_an_error_in_a_worker_names_the_sample_and_shows_where_it_was_raised(bad):
    def error_of(workers):
        with Feed(sources.Picky(bad=[bad]), batch_size=8, workers=workers) as feed, pytest.raises(SampleError) as found:
            list(feed)
        return found.value

    here, there = error_of(0), error_of("processes:1")
    assert (str(there), there.index) == (str(here), here.index)
    if bad != 5:
        shown = "".join(traceback.format_exception(there))
        assert "In worker process" in shown
        assert "raise" in shown
        assert "in __getitem__" in shown
    assert isinstance(there.__cause__, WorkerError) == (bad == 3)


def test_a_feed_goes_on_where_a_state_was_taken_with_any_kind_of_workers():
    with Feed(sources.Picky(), batch_size=4, workers="processes:2", shuffle=True) as feed:
        batches = iter(feed)
        begun = [flat(next(batches)) for _ in range(3)]
        state = feed.state_dict()
    rest = Feed(sources.Picky(), batch_size=4, workers=0, shuffle=True)
    rest.load_state_dict(state)
    whole = [flat(batch) for batch in Feed(sources.Picky(), batch_size=4, workers=0, shuffle=True)]
    assert begun + [flat(batch) for batch in rest] == whole


def test_every_process_works_and_all_are_kept_over_epochs():
    with Feed(sources.Owner(), batch_size=8, workers="processes:2") as feed:
        first, second = ({int(pid) for batch in feed for pid in batch[:, 1]} - {os.getpid()} for _ in range(2))
        kinds = {stage.kind for stage in feed.statistics().stages}
    assert len(first) == 2
    assert first == second
    assert kinds == {"processes"}


def test_a_worker_that_ends_the_program_ends_the_pass_alone():
    with Feed(sources.Quitting(), batch_size=8, workers="processes:1") as feed:
        with pytest.raises(WorkerError, match="SystemExit: 5"):
            list(feed)
        assert feed.failures == []


# ---------------------------------------------------------------- killed workers


def test_a_sample_that_kills_its_worker_is_tried_twice_and_recorded_once():
    with Feed(sources.Deadly(), batch_size=5, workers="processes:2", on_error="skip") as feed:
        rows = [int(row[0]) for batch in feed for row in batch]
        told = {one.index: (one.reason, one.attempts) for one in feed.failures}
    assert rows == [index for index in range(24) if index not in {5, 13}]
    assert len(feed.failures) == 2
    assert told[5][0].startswith("the worker process was killed by signal 9 (SIGKILL)")
    assert told[13][0].startswith("the worker process ended with exit code 7")


def test_a_worker_that_is_killed_once_costs_no_sample(tmp_path):
    """The samples of the fourth batch are asked for several at a time, since those before came quickly."""
    with Feed(sources.Once(tmp_path), batch_size=24, workers="processes:1", depth=1) as feed:
        assert [int(row[0]) for batch in feed for row in batch] == [*range(96)]
        assert feed.failures == []


def test_workers_that_all_die_end_the_pass():
    with Feed(sources.AllDeadly(), batch_size=24, workers="processes:2", on_error="skip") as feed:
        workers_of(feed, 2)[0]._deaths._count = 28
        with pytest.raises(PeerError, match="worker processes died, and no sample came"):
            list(feed)


def test_workers_killed_at_random_lose_no_sample_and_double_none():
    stop, dice = threading.Event(), random.Random(5)  # noqa: S311 - a dice
    killed: list[int] = []

    def kill() -> None:
        while not stop.wait(0.05):
            ready = [worker._process for worker in workers if worker._attached and worker._process is not None]
            if ready and dice.random() < 0.3:
                process = dice.choice(ready)
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)

    with Feed(sources.Slow(), batch_size=16, workers="processes:2", shuffle=True, on_error="skip") as feed:
        workers: list[Any] = workers_of(feed, 2)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for _ in range(2):
                came = sorted(int(row[0]) for batch in feed for row in batch)
                assert sorted([*came, *(one.index for one in feed.failures)]) == [*range(200)]
                feed.failures.clear()
        finally:
            stop.set()
            killer.join()
    assert killed
    assert not any(alive(pid) for pid in killed)


# ---------------------------------------------------------------- the end


def test_nothing_is_left_after_many_feeds():
    def once() -> None:
        with Feed(sources.Picky(8), batch_size=4, workers="processes:1") as feed:
            next(iter(feed))

    once()  # the first one starts what multiprocessing keeps for good
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(8):
        once()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # noqa: PTH208 - threads end a bit later
    assert not [process for process in multiprocessing.active_children() if process.name.startswith("interlock")]


def test_a_worker_that_hangs_is_killed_when_its_feed_is_closed():
    feed = Feed(sources.Hanging(), batch_size=2, workers="processes:1")
    found: list[BaseException] = []

    def read():
        try:
            next(iter(feed))
        except PeerError as error:
            found.append(error)

    reading = threading.Thread(target=read, daemon=True)
    worker = workers_of(feed, 1)[0]
    reading.start()
    wait_until(lambda: worker._attached)
    pid = worker._process.pid
    began = time.monotonic()
    feed._passes.processes(1, feed._source, None).close()
    assert time.monotonic() - began < 8
    assert not alive(pid)
    reading.join(20)
    assert "the worker processes were ended" in str(found[0])


def test_dropping_a_feed_ends_its_workers():
    feed = Feed(sources.Picky(), batch_size=4, workers="processes:2")
    batches = iter(feed)
    next(batches)
    pids = [worker._process.pid for worker in workers_of(feed, 2) if worker._process is not None]
    assert pids
    del batches, feed
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_closed_feed_may_be_read_again():
    feed = Feed(sources.Picky(8), batch_size=4, workers="processes:1")
    for _ in range(2):
        assert len(list(feed)) == 2
        feed.close()


PROGRAM = """
import os, signal, sys, threading
sys.path.append({here!r})
import process_sources as sources
from interlock import Feed

if __name__ == "__main__":
    feed = Feed(sources.Owner(), batch_size=8, workers="processes:2")
    pids = {{int(pid) for batch in feed for pid in batch[:, 1]}} - {{os.getpid()}}
    batches = iter(feed)
    next(batches)
    print(*pids, flush=True)
    {then}
"""


def started(tmp_path, then):
    """Start a program with two workers; return it and their pids."""
    path = tmp_path / "program.py"
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job may not
    path.write_text(heard + PROGRAM.format(here=str(HERE), then=then))
    running = subprocess.Popen(
        [sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    pids = [int(pid) for pid in running.stdout.readline().split()]
    assert len(pids) == 2
    return running, pids


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_when_their_parent_is_killed(tmp_path, number):
    running, pids = started(tmp_path, "for _ in range(300): threading.Event().wait(0.2)")
    assert [named_memory(pid) for pid in (running.pid, *pids)] == [[], [], []]
    running.send_signal(number)
    running.communicate(timeout=20)
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_worker_that_hangs_ends_when_its_parent_is_killed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "import multiprocessing, sys, threading\n"
        f"sys.path.append({str(HERE)!r})\n"
        "import process_sources as sources\n"
        "from interlock import Feed\n"
        "if __name__ == '__main__':\n"
        "    feed = Feed(sources.Hanging(), batch_size=2, workers='processes:1')\n"
        "    threading.Thread(target=lambda: next(iter(feed)), daemon=True).start()\n"
        "    while not (feed._passes._processes and feed._passes._processes._workers[0]._attached):\n"
        "        threading.Event().wait(0.01)\n"
        "    print(*(one.pid for one in multiprocessing.active_children()), flush=True)\n"
        "    threading.Event().wait(60)\n"
    )
    running = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    pid = int(running.stdout.readline())
    assert alive(pid)
    running.kill()
    running.communicate(timeout=20)
    wait_until(lambda: not alive(pid))


def test_ctrl_c_ends_the_program_and_its_workers(tmp_path):
    """A terminal sends it to the whole group. A loaded machine may lose one: it is sent again then."""
    running, pids = started(tmp_path, "for _ in range(300): threading.Event().wait(0.2)")
    said = ""
    for _ in range(6):
        os.killpg(running.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, said = running.communicate(timeout=10)
            break
    assert "KeyboardInterrupt" in said
    wait_until(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize(("then", "code"), [("pass", 0), ("raise ValueError('mine')", 1)])
def test_workers_are_gone_when_the_program_has_ended(tmp_path, then, code):
    running, pids = started(tmp_path, then)
    _, said = running.communicate(timeout=20)
    assert running.returncode == code
    assert said.count("Traceback") == code
    assert not any(alive(pid) for pid in pids)


# ---------------------------------------------------------------- what cannot be meant


def test_a_source_that_cannot_be_sent_is_named():
    class Local:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return np.int64(index)

    with pytest.raises(UsageError, match=r"the source Local cannot be sent to a worker process.*module level"):
        list(Feed(Local(), batch_size=4, workers="processes:1"))
    stages = [sources.doubled, lambda sample: sample]
    with pytest.raises(UsageError, match="stage '<lambda>' cannot be sent to a worker process"):
        list(Feed([1, 2, 3], batch_size=3, workers="processes:1", stages=stages))


def test_an_iterable_is_refused():
    with pytest.raises(UsageError, match=r"an iterable cannot be read by worker processes.*use threads"):
        Feed(iter([1, 2]), batch_size=1, workers="processes")


def test_a_script_without_a_guard_is_told_so(tmp_path):
    path = tmp_path / "unguarded.py"
    path.write_text(
        "import sys\n"
        f"sys.path.append({str(HERE)!r})\n"
        "import process_sources as sources\n"
        "from interlock import Feed\n"
        "print(len(list(Feed(sources.Picky(), batch_size=8, workers='processes:1'))))\n"
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "UsageError: a worker process ended with exit code 1 before it was ready" in done.stderr
    assert 'put the loop under `if __name__ == "__main__":`' in done.stderr


def test_bounds_count_what_fails_in_workers():
    tolerance = Tolerance("skip", most=1)
    feed = Feed(sources.Picky(bad=[3, 4]), batch_size=8, workers="processes:1", on_error=tolerance)
    with feed, pytest.raises(SampleError, match="2 of 8 samples are bad"):
        list(feed)


def test_a_feed_that_is_closed_again_and_again_leaves_nothing_open():
    feed = Feed(sources.Picky(8), batch_size=4, workers="processes:1")

    def once():
        list(feed)
        feed.close()
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = once()
    for _ in range(3):
        once()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # noqa: PTH208


def test_a_closed_feed_that_is_gone_leaves_nothing_of_its_source():
    source = sources.Picky(8)
    gone = weakref.ref(source)
    with Feed(source, batch_size=4, workers="processes:1") as feed:
        list(feed)
    del source, feed
    wait_until(lambda: gone() is None)


def test_more_passes_side_by_side_than_a_worker_remembers_cost_no_worker():
    with Feed(sources.Owner(), batch_size=8, workers="processes:1", depth=1) as feed:
        passes = [iter(feed) for _ in range(6)]
        found = [[next(one) for one in passes] for _ in range(4)]
    for number, batches in enumerate(found):
        assert all(batch[:, 0].tolist() == list(range(8 * number, 8 * number + 8)) for batch in batches)
    assert len({int(pid) for batches in found for batch in batches for pid in batch[:, 1]} - {os.getpid()}) == 1


FORKING = """
import os, sys
sys.path.append({here!r})
import process_sources as sources
from interlock import Feed

if __name__ == "__main__":
    feed = Feed(sources.Owner(), batch_size=8, workers="processes:1")

    def owners():
        rows = [row.tolist() for batch in feed for row in batch]
        assert [number for number, _ in rows] == list(range(32))
        return {{pid for _, pid in rows}} - {{os.getpid(), os.getppid()}}

    mine = owners()
    child = os.fork()
    if not child:
        shared = list(feed._passes._spare)
        print(len(mine & owners()), any(one in shared for one in feed._passes._spare), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(len(mine & owners()))
"""


def test_a_forked_process_has_workers_and_slots_of_its_own(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(FORKING.format(here=str(HERE)))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "False", "1"], done.stderr


@pytest.mark.parametrize("workers", [0, 2, "processes:1"])
def test_a_source_with_a_length_cannot_end_the_epoch_unseen(workers):
    with (
        Feed(sources.Exhausted(), batch_size=4, workers=workers) as feed,
        pytest.raises(SampleError, match="sample 3: the source raised StopIteration"),
    ):
        list(feed)


def test_many_samples_that_cannot_be_had_at_once_are_asked_for_one_by_one():
    with Feed(sources.Leaky(8), batch_size=4, workers="processes:1") as feed:
        assert [batch[:, 0].tolist() for batch in feed] == [[0, 1, 2, 3], [4, 5, 6, 7]]
