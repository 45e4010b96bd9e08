"""Storage that fails in other ways than by being full: errors of fsync, files taken away, power cuts, hangs."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from interlock.drain import Drain, _drain, _publish, read_status, verify_sink
from interlock.drain._folder import LineLog
from interlock.errors import BoundError, SinkConflictError, SinkError


def put(drain, first, rows=4):
    return drain.put(np.arange(first, first + rows), np.arange(first, first + rows) * 1.5)


def finish(sink, rows=12):
    with Drain(sink) as drain:
        left = np.asarray(drain.todo(range(rows)))
        if left.size:
            drain.put(left, left * 1.5)
    assert verify_sink(sink).ok
    return len(left)


# ---------------------------------------------------------------- fsync

REFUSED = {"shard": ".tmp", "folder": "/out", "manifest": "manifest.jsonl", "failures": "failures.jsonl"}


@pytest.fixture
def failing_fsync(monkeypatch):
    """Makes the first fsync of a path fail; the system takes its pages for clean then, and the next one succeeds."""
    fsync = os.fsync
    asked: list[str] = []

    def begin(end: str) -> list[str]:
        def refuse(descriptor):
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if end in path and (end != "/out" or path.endswith(end)):
                asked.append(path)
                if len(asked) == 1:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", refuse)
        return asked

    return begin


def test_a_sink_that_cannot_be_opened_leaves_no_file_open(sink, folder, failing_fsync):
    with Drain(sink) as drain:
        put(drain, 0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    asked = failing_fsync("manifest.jsonl")
    with pytest.raises(SinkError, match="Input/output error"):
        Drain(sink)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    asked.clear()
    failing_fsync("/out")
    with pytest.raises(OSError, match="Input/output error"):
        LineLog(folder / "log")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("what", REFUSED)
def test_after_an_fsync_that_failed_nothing_is_believed_and_none_is_tried_again(sink, rows, failing_fsync, what):
    drain = Drain(sink)
    put(drain, 0)
    drain.flush()
    asked = failing_fsync(REFUSED[what])
    ticket = put(drain, 4)
    drain.fail([99], "no luck")
    with pytest.raises(SinkError, match=r"Input/output error; the storage of .* failed: see .*dmesg; what was commit"):
        drain.flush()
    with pytest.raises(SinkError, match="Input/output error"):
        drain.close()
    assert len(asked) == 1
    assert not ticket.committed
    assert [one for one in range(12) if one in drain.committed] == [0, 1, 2, 3]
    # Pages that the system takes for clean are written by nobody: so no line and no name is left to be believed.
    assert read_status(sink).rows_committed == 4
    assert len(rows(sink)) == (8 if what == "manifest" else 4)  # that shard is synced, and is adopted
    assert finish(sink) == (4 if what == "manifest" else 8)
    assert len(rows(sink)) == 12


def test_a_shard_without_a_line_that_cannot_be_synced_is_set_aside_and_its_rows_made_again(
    sink, folder, rows, failing_fsync
):
    drain = Drain(sink)
    put(drain, 0)
    drain.flush()
    failing_fsync("manifest.jsonl")
    put(drain, 4)
    with pytest.raises(SinkError):
        drain.close()
    assert len(rows(sink)) == 8
    failing_fsync("/out/part-").clear()
    with pytest.warns(RuntimeWarning, match="it cannot be synced: .*Input/output error"):
        drain = Drain(sink)
    drain.close()
    assert len(rows(sink)) == 4
    assert len(list((folder / "_interlock/quarantine").iterdir())) == 1
    assert finish(sink) == 8
    assert rows(sink) == {one: one * 1.5 for one in range(12)}


def test_a_line_of_which_a_part_was_written_is_taken_back(sink, folder, monkeypatch, rows):
    """A quota, say, ends a write in its middle."""
    drain = Drain(sink)
    put(drain, 0)
    drain.flush()
    before = (folder / "_interlock/manifest.jsonl").read_bytes()
    write = os.write
    tries = []

    def short(descriptor, content):
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith("manifest.jsonl"):
            return write(descriptor, content)
        tries.append(len(content))
        if len(tries) == 1:
            return write(descriptor, content[:20])
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "write", short)
    put(drain, 4)
    with pytest.raises(SinkError, match=r"quota exceeded; free some space for .*, or have the quota raised"):
        drain.close()
    assert len(tries) == 2
    assert (folder / "_interlock/manifest.jsonl").read_bytes() == before
    monkeypatch.setattr(os, "write", write)
    assert finish(sink) == 4
    assert len(rows(sink)) == 12


# ---------------------------------------------------------------- taken away


@pytest.mark.parametrize("gone", ["", "_interlock", "_interlock/tmp", "_interlock/manifest.jsonl"])
def test_what_is_removed_while_it_is_written_ends_the_drain_with_nothing_claimed(sink, folder, gone):
    drain = Drain(sink)
    put(drain, 0)
    drain.flush()
    path = folder / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    ticket = put(drain, 4)
    with pytest.raises(SinkError, match=rf"somebody removed .*{folder.name}"):
        drain.flush()
    assert not ticket.committed
    with pytest.raises(SinkError, match="somebody removed"):
        drain.close()
    if gone == "_interlock":  # a folder of shards of which nothing vouches is nobody's to go on with
        with pytest.raises(SinkConflictError, match="nothing was touched"):
            Drain(sink)
    else:
        assert finish(sink) >= 4


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EROFS, "Read-only file system; .* has to be mounted for writing"),
        (errno.ESTALE, "Stale file handle; somebody removed it on the server"),
        (errno.EACCES, "Permission denied; check the permissions"),
        (errno.EIO, "Input/output error; the storage of .* failed"),
    ],
)
def test_an_error_that_stays_leaves_the_lock_free_and_says_what_to_do(sink, monkeypatch, rows, number, said):
    """Also where the system refuses to let go of the files."""
    drain = Drain(sink)
    put(drain, 0)
    drain.flush()

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(_publish, "run_step", refuse)
        patch.setattr(os, "ftruncate", refuse)
        put(drain, 4)
        with pytest.raises(SinkError, match=said):
            drain.close()
    assert finish(sink) == 8
    assert len(rows(sink)) == 12


def test_permissions_that_are_taken_away_are_named_and_the_next_run_goes_on(tmp_path):
    code = """
    import os, sys
    import numpy as np
    from interlock.drain import Drain
    from interlock.errors import SinkError

    os.umask(0o077)
    if os.geteuid() == 0:
        os.chown(sys.argv[1], 65534, 65534)
        os.setuid(65534)
    sink, folder = f"npy:{sys.argv[1]}/out", f"{sys.argv[1]}/out/_interlock/tmp"
    drain = Drain(sink)
    drain.put([0], np.ones(1))
    drain.flush()
    os.chmod(folder, 0o500)
    drain.put([1], np.ones(1))
    try:
        drain.close()
    except SinkError as error:
        print(error)
    os.chmod(folder, 0o700)
    with Drain(sink) as again:
        print(sorted(one for one in range(2) if one in again.committed))
        again.put([1], np.ones(1))
    """
    place = Path("/tmp") / f"interlock-{os.getpid()}-{tmp_path.name}"  # noqa: S108 - which others may enter
    place.mkdir(mode=0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(place)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Permission denied; check the permissions of" in done.stdout
        assert done.stdout.splitlines()[-1] == "[0]"
        assert read_status(f"npy:{place}/out").rows_committed == 2
    finally:
        shutil.rmtree(place)


# ---------------------------------------------------------------- hangs


@pytest.fixture
def never():
    """What nothing sets before the test is over."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.parametrize("step", ["open", "write", "close", "sync", "rename", "record"])
def test_a_step_that_hangs_ends_every_call_in_bounded_time_and_keeps_the_lock(sink, monkeypatch, never, step, rows):
    monkeypatch.setattr(_drain, "_STOP_BOUND_S", 0.1)
    drain = Drain(sink, timeout_s=0.3, budget_bytes=4096)
    put(drain, 0)
    drain.flush()

    def run_step(name, action):
        if name == step:
            never.wait()
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    ticket = put(drain, 4)
    with pytest.raises(BoundError, match=r"the flush of .* is not done after 0\.3 s.*(writing 4 rows|committing a sh)"):
        drain.flush()
    with pytest.raises(BoundError, match=r"put to .* found no room .*(writing|committing)"):
        drain.put(np.arange(100, 1100), np.zeros(1000))
    for _ in range(2):
        with pytest.raises(BoundError, match=r"is not done after|does not end"):
            drain.close()
    assert not ticket.committed
    assert len(drain.committed) == 4
    with pytest.raises(SinkConflictError, match=f"process {os.getpid()} holds"):  # it may yet write
        Drain(sink)
    never.set()
    drain._writer.stop(20)
    finish(sink)
    assert set(range(12)) <= set(rows(sink))


HANGS = """
import os, sys, threading
import numpy as np
from interlock.drain import Drain, _drain, _publish, _writer, open_sink
from interlock.errors import BoundError

_drain._STOP_BOUND_S = _writer._EXIT_BOUND_S = 0.3
kind, folder, closes = sys.argv[1], sys.argv[2], sys.argv[3] == "close"
sink = f"{'zarr' if kind == 'zarr' else 'npy'}:{folder}/out"
if kind == "zarr":  # whose threads write
    from zarr.storage import _local
    put = _local._put
    def hang(path, *given, **more):
        if "/c/" in str(path):
            threading.Event().wait()
        put(path, *given, **more)
    _local._put = hang
elif kind == "function":
    sink = lambda ids, arrays: threading.Event().wait()
elif kind == "fifo":  # a write that the system itself holds up
    os.mkfifo(f"{folder}/fifo")
    def open_shard(self, path, *, run):
        open(f"{folder}/fifo", "wb")
    type(open_sink(sink)[0]).open_shard = open_shard
else:
    _publish.run_step = lambda name, action: threading.Event().wait() if name == kind else action()
drain = Drain(sink, timeout_s=0.3)
ticket = drain.put([1], np.ones(1))
if closes:
    try:
        drain.close()
    except BoundError as error:
        print(error)
print(ticket.committed)
"""


@pytest.mark.parametrize("kind", ["function", "fifo", "sync", "zarr"])
@pytest.mark.parametrize("end", ["close", "leave"])
def test_a_program_whose_writer_hangs_ends_and_frees_the_lock(tmp_path, kind, end):
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", HANGS, kind, str(tmp_path), end],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
    if end == "close":
        assert "the writer is " in done.stdout
        assert done.stderr == ""
    else:
        assert "1 rows that were put are not committed" in done.stderr
    if kind != "function":
        assert finish(f"{'zarr' if kind == 'zarr' else 'npy'}:{tmp_path}/out") == 12
