"""`kill -9` at every step of settling, merging and compacting loses no row; the next call ends what was begun."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from interlock.drain import Drain, compact_sink, merge_sink, read_committed, read_status, verify_sink
from interlock.drain._maintain import MERGE_STEPS
from interlock.drain._rewrite import STEPS

ROWS = 12

SCENARIOS = [
    *(("close", step, 0) for step in STEPS),
    *(("compact", step, occurrence) for step in STEPS for occurrence in ((0, 2) if step == "hide" else (0,))),
    *(("compact", step, 0) for step in MERGE_STEPS),
    *(("compact", "removing", occurrence) for occurrence in (0, 3)),
    *(("drop", step, 0) for step in ("record", "hide", "sync-folder")),
]
"""What is done, the step before which the process dies, and at which occurrence of it."""

CHILDREN = r"""
import json, os, signal, sys
import pyarrow.parquet
from interlock.drain import _folder, _maintain, _rewrite, compact_sink, merge_sink, settle_sink

scheme, folder, scenarios = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

def child(path, what, step, occurrence):
    hits = [0]
    def maybe_die(name):
        if name == step:
            if hits[0] == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)
            hits[0] += 1
    def run_step(name, action):
        maybe_die(name)
        action()
    remove = _folder.remove
    def dying_remove(path):
        maybe_die("removing")
        remove(path)
    _rewrite.run_step = _maintain.run_step = run_step
    _folder.remove = dying_remove
    sink = f"{scheme}:{path}"
    settle_sink(sink) if what == "close" else compact_sink(sink)

for at, (what, step, occurrence) in enumerate(scenarios):
    pid = os.fork()
    if pid == 0:
        child(f"{folder}/{at}", what, step, occurrence)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if (scheme, step) == ("delta", "hide"):  # there is no such step
        assert status == 0
        continue
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (what, step, occurrence, status)
"""


def put(drain, ids):
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * 1.5, "vector": np.repeat(ids[:, None], 3, 1)})


def make(scheme, folder, what):
    """Make a folder of three ranks; for `close` and `drop` with rows that two of them have."""
    sink = f"{scheme}:{folder}"
    ranks = [Drain(sink, rank=(rank, 3), total=ROWS, shard_bytes=120) for rank in range(3)]
    for rank, drain in enumerate(ranks):
        put(drain, range(rank, ROWS, 3))
        drain.flush()
        again = {"close": [0, 100 + rank], "drop": [0], "compact": []}[what] if rank == 2 else []
        if again:
            put(drain, again)
    return ranks


@pytest.fixture(scope="module", params=["parquet", "npy", "delta"])
def killed(request, tmp_path_factory):
    """A folder per scenario, left by a process that was killed there."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interlock.drain._drain.settle_sink", lambda *_, **__: 0)
        for what in ("close", "compact", "drop"):
            for drain in make(request.param, folder / what, what):
                drain.close()
    for at, (what, _, _) in enumerate(SCENARIOS):
        shutil.copytree(folder / what, folder / str(at))
    arguments = [request.param, str(folder), json.dumps(SCENARIOS)]
    subprocess.run([sys.executable, "-c", CHILDREN, *arguments], check=True, timeout=100)
    return request.param, folder


@pytest.mark.parametrize("at", range(len(SCENARIOS)), ids=["-".join(map(str, one)) for one in SCENARIOS])
def test_what_was_killed_at_a_step_is_ended_by_whoever_comes_next(killed, at, tmp_path, rows, columns):
    scheme, folder = killed
    end = ("merge", "compact", "open")[(at + (scheme == "npy")) % 3]
    path = tmp_path / "out"
    shutil.copytree(folder / str(at), path)
    sink = f"{scheme}:{path}"
    expected = {one: 1.5 * one for one in (*range(ROWS), *((102,) if SCENARIOS[at][0] == "close" else ()))}
    if SCENARIOS[at][0] == "compact":
        assert rows(sink).items() <= expected.items()  # never twice, and no wrong value
    committed = read_committed(sink)  # before anybody mends it
    assert set(expected) == {one for one in expected if one in committed}

    if end == "open":
        with Drain(sink, rank=(1, 2)) as drain:
            assert set(expected) == {one for one in expected if one in drain.committed}
            assert list(drain.todo(range(ROWS), rank=0, world=1)) == []
    else:
        assert (merge_sink if end == "merge" else compact_sink)(sink).rows == len(expected)

    assert rows(sink) == expected
    everything = columns(sink)
    assert (everything["vector"] == everything["id"][:, None]).all()
    report = verify_sink(sink)
    assert report.ok, report
    assert read_status(sink).rows_committed == len(expected)
    assert not [entry for folder in (path / "_interlock").glob("tmp*") for entry in folder.iterdir()]


def test_a_second_merge_changes_nothing(tmp_path):
    for drain in make("npy", tmp_path / "out", "close"):
        drain.close()
    sink = f"npy:{tmp_path / 'out'}"
    first, second = merge_sink(sink), merge_sink(sink)
    assert (first.ranks, second.ranks) == (3, 1)
    assert (first.rows, first.shards) == (second.rows, second.shards)
    assert second.rows_removed == second.shards_replaced == 0


def test_compaction_makes_one_shard_of_many_and_ranks_write_on(tmp_path, rows):
    for drain in make("parquet", tmp_path / "out", "compact"):
        drain.close()
    sink = f"parquet:{tmp_path / 'out'}"
    before = read_status(sink).shards
    report = compact_sink(sink)
    assert (report.shards, report.shards_replaced) == (1, before)
    with Drain(sink, rank=(2, 3)) as drain:
        put(drain, [0, 50])
    assert rows(sink) == {one: 1.5 * one for one in (*range(ROWS), 50)}
    assert compact_sink(sink).shards == 1
    assert verify_sink(sink).ok


def test_compaction_leaves_shards_that_are_big_already(tmp_path):
    for drain in make("npy", tmp_path / "out", "compact"):
        drain.close()
    sink = f"npy:{tmp_path / 'out'}"
    assert compact_sink(sink, shard_bytes=100).shards_replaced == 0
