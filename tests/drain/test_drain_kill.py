"""`kill -9` at every step of the protocol loses nothing committed and duplicates nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interlock.drain import Drain, Ragged, read_status, verify_sink
from interlock.drain._publish import STEPS

ROWS = 40

LATER_TOO = {"rename", "sync-folder", "record", "end", "torn"}
"""Steps that are also hit in the third shard, where committed ones lie beside it."""

LARGE = 64 << 20
SMALL = 190
"""Each put fills a shard and begins the next, which is written while the one before is synced."""

SCENARIOS = [
    *(
        (step, occurrence, LARGE, 1)
        for step in (*STEPS, "torn", "created")
        for occurrence in ([0, 2] if step in LATER_TOO else [0])
    ),
    *((step, 3, SMALL, 1) for step in (*STEPS, "torn") if step != "schema"),
    *((step, 0 if step == "schema" else 4, SMALL, 3) for step in (*STEPS, "torn")),
]
"""Step, how often it was reached before, bytes of a shard, writers."""

SHOWN = {*STEPS[STEPS.index("rename") :], "torn"}
"""Steps from which on readers may see the shard: until then that of `delta` is one of `parquet`."""

CHILDREN = r"""
import json, os, signal, sys, threading
import numpy as np
from interlock.drain import Drain, Ragged, _folder, _publish, open_sink

sink, folder, scenarios = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
open_sink(f"{sink}:nowhere")  # so that its package is imported once

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def child(path, step, occurrence, shard_bytes, writers):
    hits = [0]
    together, came = threading.Barrier(writers), threading.local()
    def run_step(name, action):
        if name == "write" and not getattr(came, "before", False):
            came.before = True
            together.wait(20)  # each writer has a shard of its own from here on
        if step == "torn" and name == "record" and hits[0] == occurrence:
            with open(f"{path}/_interlock/manifest.jsonl", "ab") as file:
                file.write(b'{"shard":"part-')
            die()
        if name == step or (step == "torn" and name == "record"):
            if hits[0] == occurrence:
                die()
            hits[0] += 1
        action()
    _publish.run_step = run_step
    if step == "created":
        _folder.replace_file = lambda *given: die()
    drain = Drain(f"{sink}:{path}", total=40, fingerprint={"model": "m"}, shard_bytes=shard_bytes, writers=writers)
    with open(f"{path}.committed", "w") as told:
        for start in range(0, 40, 5):
            ids = np.arange(start, start + 5)
            tokens = Ragged([np.full(one % 4, one) for one in ids])
            drain.put(ids, {"output": ids * 1.5, "vector": np.repeat(ids[:, None], 3, 1), "tokens": tokens})
            if (start // 5 + 1) % (2 if writers == 1 else 4) == 0:
                drain.flush()
                told.write(" ".join(map(str, range(start + 5))) + "\n")
                told.flush()
    drain.close()

for at, scenario in enumerate(scenarios):
    if scenario is None:
        continue
    step, occurrence, shard_bytes, writers = scenario
    pid = os.fork()
    if pid == 0:
        child(f"{folder}/{at}", step, occurrence, shard_bytes, writers)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (step, occurrence, status)
"""


@pytest.fixture(scope="module", params=["parquet", "npy", "arrow", "safetensors", "zarr", "webdataset", "delta"])
def killed(request, tmp_path_factory):
    """A folder per scenario, left by a child that was killed there. One process forks them, before any thread."""
    folder = tmp_path_factory.mktemp(request.param)
    scenarios = [one if one[0] in SHOWN or request.param != "delta" else None for one in SCENARIOS]
    arguments = [request.param, str(folder), json.dumps(scenarios)]
    subprocess.run([sys.executable, "-c", CHILDREN, *arguments], check=True, timeout=100)
    return request.param, folder


@pytest.mark.parametrize("at", range(len(SCENARIOS)), ids=["-".join(map(str, one)) for one in SCENARIOS])
def test_a_run_killed_at_a_step_is_finished_by_the_next(killed, at, rows, columns):
    scheme, folder = killed
    if scheme == "delta" and SCENARIOS[at][0] not in SHOWN:
        pytest.skip("as with parquet")
    path = folder / str(at)
    sink = f"{scheme}:{path}"
    told = Path(f"{path}.committed")
    promised = {int(one) for one in told.read_text().split()} if told.exists() else set()

    before = rows(sink)
    assert promised <= set(before)
    assert all(value == 1.5 * one for one, value in before.items())

    with Drain(sink, total=ROWS, fingerprint={"model": "m"}) as drain:
        assert promised <= {one for one in range(ROWS) if one in drain.committed}
        committed = {one for one in range(ROWS) if one in drain.committed}
        # A shard of `delta` that was renamed and not published is adopted, and was not seen.
        assert set(before) <= committed if scheme == "delta" else set(before) == committed
        left = drain.pending(np.arange(ROWS))
        assert len(left) == ROWS - len(committed)
        for start in range(0, len(left), 7):
            ids = np.array([left.id_of(k) for k in range(start, min(start + 7, len(left)))])
            tokens = Ragged([np.full(one % 4, one) for one in ids])
            drain.put(ids, {"output": ids * 1.5, "vector": np.repeat(ids[:, None], 3, 1), "tokens": tokens})

    assert rows(sink) == {one: 1.5 * one for one in range(ROWS)}
    everything = columns(sink)
    assert (everything["vector"] == everything["id"][:, None]).all()
    for one, tokens in zip(everything["id"].tolist(), everything["tokens"], strict=True):
        assert np.asarray(tokens).tolist() == [one] * (one % 4)
    report = verify_sink(sink)
    assert report.ok, report
    assert report.missing == 0
    assert read_status(sink).rows_committed == ROWS
    assert list((path / "_interlock/tmp").iterdir()) == []
    assert list((path / "_interlock/quarantine").iterdir()) == []


def test_the_lock_of_a_killed_writer_is_free(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    code = f"""
import os, signal, sys
from interlock.drain import Drain
drain = Drain({sink!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    with Drain(sink) as drain:
        drain.put([1], np.ones(1))
    assert verify_sink(sink).ok
