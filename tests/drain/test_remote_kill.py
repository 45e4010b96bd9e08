"""`kill -9` at every call that changes a remote store loses nothing committed and doubles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interlock.drain import Drain, merge_sink, read_committed, read_status, verify_sink
from interlock.drain._publish import STEPS

ROWS = 8
MOST_CALLS = 90

CHILDREN = r"""
import json, os, runpy, signal, sys
import numpy as np
import pyarrow.parquet
from interlock.drain import Drain, _publish, _rewrite, compact_sink, open_sink

store, scheme, folder, what, stops = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], json.loads(sys.argv[5])
known = runpy.run_path(store)
open_sink(f"{scheme}:nowhere")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def write(sink):
    with Drain(sink, total=8, fingerprint={"model": "m"}, shard_bytes=120) as drain:
        with open(f"{sink.partition('://')[2]}.committed", "w") as told:
            for start in range(0, 8, 4):
                ids = np.arange(start, start + 4)
                drain.put(ids, {"output": ids * 1.5, "vector": np.repeat(ids[:, None], 3, 1)})
                drain.flush()
                told.write(" ".join(map(str, range(start + 4))) + "\n")
                told.flush()

def child(sink, stop):
    calls, hits = [0], [0]
    def hook(call, path):
        if call in known["CHANGES"]:
            if calls[0] == stop:
                with known["FolderStore"].placing:
                    die()
            calls[0] += 1
    def run_step(name, action):
        if [name, hits[0]] == stop:
            die()
        hits[0] += name == "end"
        action()
    if isinstance(stop, int):
        known["FolderStore"].hook = staticmethod(hook)
    else:
        _publish.run_step = run_step
    write(sink) if what == "write" else compact_sink(sink)

for at, stop in enumerate(stops):
    pid = os.fork()
    if pid == 0:
        child(f"{scheme}:bucket://{folder}/{at}", stop)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print(json.dumps([at, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status]), flush=True)
    if status == 0 and isinstance(stop, int):
        break
"""


def put(drain, ids):
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * 1.5, "vector": np.repeat(ids[:, None], 3, 1)})


def run_children(scheme, folder, what, stops):
    """Run the children until one of them has no more call to die at; return how many were killed."""
    arguments = [str(Path(__file__).with_name("store.py")), scheme, str(folder), what, json.dumps(stops)]
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, *arguments], check=True, timeout=100, capture_output=True, text=True
    )
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(killed or status == 0 for _, killed, status in ends), done.stderr[-3000:]
    return [at for at, killed, _ in ends if killed]


@pytest.mark.parametrize(("scheme", "at"), [("parquet", "step"), ("npy", "call")])
def test_a_run_killed_at_any_call_or_step_is_finished_by_the_next(scheme, at, tmp_path, rows, columns):
    steps = [(name, int(name not in {"schema", "open", "write"})) for name in STEPS]
    killed = run_children(scheme, tmp_path, "write", list(range(MOST_CALLS)) if at == "call" else steps)
    assert len(STEPS) <= len(killed) < MOST_CALLS
    for one in killed:
        path = tmp_path / str(one)
        sink, local = f"{scheme}:bucket://{path}", f"{scheme}:{path}"
        told = Path(f"{path}.committed")
        promised = {int(word) for word in told.read_text().split()} if told.exists() else set()

        with Drain(sink, total=ROWS, fingerprint={"model": "m"}) as drain:
            before = {row for row in range(ROWS) if row in drain.committed}
            assert promised <= before
            put(drain, list(drain.todo(range(ROWS))))

        assert rows(local) == {row: 1.5 * row for row in range(ROWS)}
        everything = columns(local)
        assert (everything["vector"] == everything["id"][:, None]).all()
        report = verify_sink(sink)
        assert report.ok, report
        assert report.missing == 0
        assert read_status(sink).rows_committed == ROWS
        left = [*path.glob("_interlock/tmp*/*"), *path.glob("_interlock/lock*"), *path.glob("_interlock/quarantine*")]
        assert not left


@pytest.mark.parametrize("scheme", ["npy"])
def test_compacting_killed_at_any_call_is_ended_by_whoever_comes_next(scheme, tmp_path, rows, monkeypatch):
    stops = list(range(MOST_CALLS))
    expected = {row: 1.5 * row for row in (*range(6), 102)}
    with monkeypatch.context() as patch:
        patch.setattr("interlock.drain._drain.settle_sink", lambda *_, **__: 0)
        make(f"{scheme}:bucket://{tmp_path}/made")
    for at in stops:
        copy_tree(tmp_path / "made", tmp_path / str(at))
    killed = run_children(scheme, tmp_path, "compact", stops)
    assert 15 < len(killed) < MOST_CALLS
    for at in killed:
        path = tmp_path / str(at)
        sink = f"{scheme}:bucket://{path}"
        committed = read_committed(sink)
        assert all(row in committed for row in expected)
        if at % 2:
            with Drain(sink, rank=(1, 2)) as drain:
                assert all(row in drain.committed for row in expected)
                put(drain, [0])  # came before: dropped, and closing settles what ranks have twice
        else:
            merge_sink(sink)
        assert rows(f"{scheme}:{path}") == expected
        report = verify_sink(sink)
        assert report.ok, report
        assert read_status(sink).rows_committed == len(expected)


def make(sink):
    """Make a sink of two ranks that have a row in common."""
    for rank in range(2):
        with Drain(sink, rank=(rank, 2), total=ROWS) as drain:
            put(drain, range(rank, 6, 2))
            drain.flush()
            put(drain, [0, 102] if rank == 1 else [])


def copy_tree(source, target):
    for file in source.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
