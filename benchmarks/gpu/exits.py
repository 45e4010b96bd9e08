"""Exits with live arrays and pending work on a GPU: run many child processes and count how they end.

    python benchmarks/gpu/exits.py [--save] [--only jax,both] [--count 100] [--jobs 8] [--seconds 80]

Each child queues far more work on the device than it waits for, over batches of a feed and in front of a drain, and
ends with live arrays, a feed half-way and a drain that nobody closed. Clean is exit code 0 with nothing on stderr.

A child is forked from a process that has imported the frameworks and has touched no device, because imports would take
most of the time; it opens the device, runs and ends on its own, through the interpreter's whole shutdown.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from _common import BEGAN_S, Report, arguments, devices, require_cuda, wanted

END_S = 12
"""What the last children are given to end, within `--seconds`."""

SERVER = """
import json, os, signal, sys, warnings
import jax, jax.numpy, numpy, torch
import interlock, interlock.feed, interlock.drain

def serve():
    for line in sys.stdin:
        request = json.loads(line)
        with warnings.catch_warnings(action="ignore"):  # forking beside threads; these are all idle
            child = os.fork()
        if child == 0:
            return request
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

request = serve()
if request is not None:
    signal.alarm(request["longest_s"])
    os.dup2(os.open(request["folder"] + "/stderr", os.O_WRONLY | os.O_CREAT), 2)
    os.dup2(2, 1)
    sys.argv = ["program", request["folder"]]
    warnings.simplefilter("error")
    exec(compile(request["program"], "program", "exec"))
"""

START = """
import sys, warnings
import numpy as np
import interlock

warnings.filterwarnings("ignore", "a drain was not closed", ResourceWarning)  # that is the point here
data = np.ones((64 * 64, 1024), "float32")
rows = np.arange(64)
kept = []
kept.append(kept)
"""

JAX = """
import jax, jax.numpy as jnp

@jax.jit
def step(weights, batch):
    for _ in range(8):
        weights = jnp.tanh(weights @ batch[:, :256].T @ batch[:, :256])[:256, :256]
    return weights

weights = jnp.ones((256, 256))
jax_feed = interlock.Feed(data, batch_size=256, to="jax", workers=2, zero_copy=True)
jax_drain = interlock.Drain(f"npy:{sys.argv[1]}/jax", commit_interval_s=600)
jax_iterator = iter(jax_feed)
for number, batch in enumerate(jax_iterator):
    for _ in range(40):
        weights = step(weights, batch)
    jax_drain.put(rows + 64 * number, {"weights": weights[:64]})
    if number % 2:
        kept.append((batch, weights))
    step(weights, batch)  # nobody takes the result
    if number == 7:
        break
"""

TORCH = """
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch_weights = torch.ones(256, 256, device=device)
torch_feed = interlock.Feed(data, batch_size=256, to="torch", device="auto" if device == "cpu" else "cuda", workers=2)
torch_drain = interlock.Drain(f"npy:{sys.argv[1]}/torch", commit_interval_s=600)
torch_iterator = iter(torch_feed)
for number, batch in enumerate(torch_iterator):
    for _ in range(300):
        torch_weights = torch.tanh(torch_weights @ batch[:, :256].T @ batch[:, :256])
    torch_drain.put(rows + 64 * number, {"weights": torch_weights[:64]})
    if number % 2:
        kept.append((batch, torch_weights))
    if number == 7:
        break
"""

PROGRAMS = {"JAX": START + JAX, "torch": START + TORCH, "both": START + JAX + TORCH}


def serve(requests: queue.SimpleQueue[str], ends: dict[str, list[tuple[str, str]]], given: Any) -> None:
    """Have programs run until none is wanted or the time is over; note the exit code and stderr of each."""
    # XLA reports slow autotuning on stderr; threads of OpenMP would not survive the fork
    few = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
    environment = {**few, **os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while not given.seconds or time.perf_counter() - BEGAN_S < given.seconds - END_S:
            try:
                name = requests.get_nowait()
            except queue.Empty:
                break
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                request = {"program": PROGRAMS[name], "folder": folder, "longest_s": given.longest_s}
                print(json.dumps(request), file=server.stdin, flush=True)
                code = server.stdout.readline().strip() or "the server died"
                said = Path(folder, "stderr")
                ends[name].append((code, said.read_text(encoding="utf-8") if said.exists() else "it did not begin"))
            if ends[name][-1] != ("0", ""):
                print(name, ends[name][-1][0], ends[name][-1][1][-1500:], file=sys.stderr, flush=True)
        server.stdin.close()


def main() -> None:
    """Print a table; end with 1 if an exit was not clean."""
    given = arguments(
        __doc__, count=(100, "exits a program"), jobs=(8, "children at a time"), longest_s=(60, "longest life of one")
    )
    if given.smoke and not devices():
        given.count = min(given.count, 3)
    else:
        require_cuda()
    names = wanted(list(PROGRAMS), given.only)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    for _ in range(given.count):
        for name in names:
            requests.put(name)
    ends: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    with ThreadPoolExecutor(given.jobs) as pool:
        for _ in range(given.jobs):
            pool.submit(partial(serve, requests, ends, given)).add_done_callback(lambda future: future.result())
    report = Report("gpu-exits", "exits with live arrays and pending work", ("program", "exits", "clean", "note"))
    for name, found in ends.items():
        bad = [code for code, said in found if (code, said) != ("0", "")]
        note = ", ".join(f"{times} x exit code {code}" for code, times in Counter(bad).items())
        report.rows.append((name, str(len(found)), str(len(found) - len(bad)), note))
        report.figures[name] = {"exits": len(found), "clean": len(found) - len(bad), "unclean": note}
    unclean = sum(figures["exits"] - figures["clean"] for figures in report.figures.values())
    report.goal("exits that were not clean", unclean, 0, at_most=True, unit="")
    report.show(save=given.save)
    raise SystemExit(1 if unclean else 0)


if __name__ == "__main__":
    main()
