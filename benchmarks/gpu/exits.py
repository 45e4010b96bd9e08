"""Exits with live arrays and pending work on a GPU: run many child processes and count how they end.

    python benchmarks/gpu/exits.py [--save] [--only jax,both] [--count 100] [--jobs 8]

Each child queues far more work on the device than it waits for, over batches of a feed and in front of a drain, and
ends with live arrays, a feed half-way and a drain that nobody closed. Clean is exit code 0 with nothing on stderr.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from _common import Report, arguments, devices, require_cuda, wanted

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


def run(program: str, timeout_s: float) -> tuple[str, str]:
    """Run one child; return how it ended and what it said on stderr."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-W", "error", "-c", program, folder]
        try:
            child = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            return "hangs", ""
    return str(child.returncode), child.stderr


def main() -> None:
    """Print a table; end with 1 if an exit was not clean."""
    given = arguments(
        __doc__, count=(100, "exits a program"), jobs=(8, "children at a time"), timeout_s=(120, "longest life of one")
    )
    if given.smoke and not devices():
        given.count = 1
    else:
        require_cuda()
    report = Report("gpu-exits", "exits with live arrays and pending work", ("program", "exits", "clean", "s", "note"))
    unclean = 0
    for name in wanted(list(PROGRAMS), given.only):
        began = time.perf_counter()
        with ThreadPoolExecutor(given.jobs) as pool:
            ends = list(pool.map(partial(run, timeout_s=given.timeout_s), [PROGRAMS[name]] * given.count))
        bad = [(code, said) for code, said in ends if (code, said) != ("0", "")]
        unclean += len(bad)
        note = ", ".join(f"{times} x exit {code}" for code, times in Counter(code for code, _ in bad).items())
        report.rows.append(
            (name, str(given.count), str(given.count - len(bad)), f"{time.perf_counter() - began:.0f}", note)
        )
        report.figures[name] = {"exits": given.count, "clean": given.count - len(bad), "unclean": note}
        for _, said in bad[:1]:
            print(said[-2000:], file=sys.stderr)
    report.goal("exits that were not clean", unclean, 0, at_most=True, unit="")
    report.show(save=given.save)
    raise SystemExit(1 if unclean else 0)


if __name__ == "__main__":
    main()
