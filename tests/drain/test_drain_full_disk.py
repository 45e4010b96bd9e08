"""A storage that is really full: a small tmpfs, in a mount namespace of its own. At every sink, at every step."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SINKS = ("parquet", "arrow", "npy", "safetensors", "zarr", "webdataset")
FAULTS = ("space", "inodes", "run.json", "schema", "open", "write", "close", "record", "failures")
"""Full by what is written; or from the start; or before a step; or when failures are recorded."""

CHILD = r"""
import json, os, subprocess, sys
import numpy as np
from interlock.drain import Drain, _publish, read_status, verify_sink
from interlock.errors import SinkError

mount, sinks, faults = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
WIDTH = 8
plain_step = _publish.run_step

def rows(drain, ids):
    drain.put(ids, {"y": np.repeat(np.asarray(ids, float)[:, None], WIDTH, 1)})

def fill():
    with open(f"{mount}/filler", "ab", 0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return

def ids_of(start):  # ids far apart: their code is longer than a page, and so is the line of a shard
    return np.random.default_rng(start).integers(0, 2**60, 300)

def trial(scheme, fault):
    room = "size=24m,nr_inodes=40" if fault == "inodes" else "size=1m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", room, "tmpfs", mount], check=True)
    sink, put, told = f"{scheme}:{mount}/out", [], 0
    def run_step(name, action):
        if name == fault and (told or fault == "schema"):
            fill()
        plain_step(name, action)
    _publish.run_step = run_step
    if fault == "run.json":
        fill()
    error = drain = None
    try:
        drain = Drain(sink, shard_bytes=30_000)
        with drain:
            for at in range(60):
                put.append(ids_of(at))
                rows(drain, put[-1])
                if at == 1 and fault != "schema":
                    drain.flush()
                    told = 600
                    if fault == "failures":
                        fill()
                        drain.fail(np.arange(100), "a reason" * 50)
                        drain.flush()
    except SinkError as caught:
        error = str(caught)
    committed = 0 if drain is None else len(drain.committed)
    if os.path.exists(f"{mount}/filler"):
        os.remove(f"{mount}/filler")
    subprocess.run(["mount", "-o", "remount,size=90m,nr_inodes=9000", mount], check=True)
    _publish.run_step = plain_step
    everything = np.concatenate(put or [ids_of(0)])
    with Drain(sink, shard_bytes=1 << 20) as again:
        resumed = len(again.committed)
        left = np.asarray(again.todo(everything))
        if left.size:
            rows(again, left)
    report = verify_sink(sink)
    quarantined = os.listdir(f"{mount}/out/_interlock/quarantine")
    subprocess.run(["umount", mount], check=True)
    return {"error": error, "told": told, "committed": committed, "resumed": resumed, "rows": report.rows,
            "wanted": len(everything), "ok": report.ok, "quarantined": quarantined}

for scheme in sinks:
    for fault in faults:
        print(json.dumps([scheme, fault, trial(scheme, fault)]), flush=True)
"""


def test_what_was_committed_stays_and_the_next_run_ends_the_job(tmp_path):
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        probe = subprocess.run(
            [*inside, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if probe.returncode:
        pytest.skip(f"mounting is not allowed here: {probe.stderr.decode().strip()}")
    arguments = [str(tmp_path), ",".join(SINKS), ",".join(FAULTS)]
    done = subprocess.run(
        [*inside, sys.executable, "-W", "error", "-c", CHILD, *arguments],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(scheme, fault) for scheme, fault, _ in trials] == [(one, fault) for one in SINKS for fault in FAULTS]
    for scheme, fault, found in trials:
        _check(f"{scheme}, {fault}: {found}", fault, found)


def _check(what, fault, found):
    assert "No space left on device" in found["error"], what
    lacking = "free some files (it has no inodes left) for" if fault == "inodes" else "free some space for"
    assert lacking in found["error"], what
    assert found["told"] <= found["committed"] <= found["resumed"], what
    assert found["told"] or fault in {"run.json", "schema"}, what
    assert found["rows"] == found["wanted"], what
    assert found["ok"], what
    assert found["quarantined"] == [], what
