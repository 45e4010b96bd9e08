"""A program that feeds a device may end at any time. Without a CUDA device the same programs run on the CPU.

`benchmarks/gpu/exits.py` does a hundred of each.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from interlock.errors import DeviceError, UsageError
from interlock.lowlevel import open_device

HEAD = """
import threading, time
import numpy as np
import interlock

data = np.ones((64 * 64, 1024), "float32")
kept = []
kept.append(kept)  # a cycle: only the collector or the end of the process lets go of what follows
"""

JAX = """
import jax, jax.numpy as jnp

@jax.jit
def step(weights, batch):
    for _ in range(SIZE // 16):
        weights = jnp.tanh(weights @ weights)
    return weights + batch[0, 0]

weights = jnp.ones((SIZE, SIZE))

def feed(**options):
    return interlock.Feed(data, batch_size=64, to="jax", workers=2, budget_bytes=8 << 20, **options)
"""

UNPACKED = """
for number, batch in enumerate(feed()):
    weights = step(weights, batch)  # queued; nobody waits for any of it
    if number % 3 == 0:
        kept.append(batch)
    if number == 12:
        break
"""

LENT = """
iterator = iter(feed(zero_copy=True))
for number in range(12):
    batch = next(iterator)
    weights = step(weights, batch)
    if number % 3 == 0:
        kept.append((batch, weights))
"""

DROPPED = """
for batch in feed(zero_copy=True):
    weights = step(weights, batch)
del weights, batch
"""

DONATED = """
double = jax.jit(lambda batch: batch * 2, donate_argnums=0)
for number, batch in enumerate(feed(zero_copy=True)):
    weights = step(weights, batch)
    result = double(batch)
"""

THREAD = """
def consume():
    global weights
    while True:
        for batch in feed(zero_copy=True):
            weights = step(weights, batch)

threading.Thread(target=consume, daemon=True).start()
time.sleep(1)
"""

EXCEPTION = UNPACKED + "raise SystemExit(0)"

TORCH = """
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
product = torch.ones(SIZE, SIZE, device=device)
torch_feed = interlock.Feed(data, batch_size=64, to="torch", device="cuda" if device == "cuda" else "host", workers=2)
for number, batch in enumerate(torch_feed):
    for _ in range(SIZE // 16):
        product = torch.tanh(product @ product)
    product += batch[0, 0]
    if number % 3 == 0:
        kept.append((batch, product))
    if number == 12:
        break
"""

PROGRAMS = {
    "jax": JAX + UNPACKED,
    "jax, zero-copy": JAX + LENT,
    "jax, all dropped": JAX + DROPPED,
    "jax, donated": JAX + DONATED,
    "jax on a daemon thread": JAX + THREAD,
    "jax, by an exception": JAX + EXCEPTION,
    "torch": TORCH,
    "jax then torch": JAX + LENT + TORCH,
    "torch then jax": TORCH + JAX + LENT,
}


def _has_cuda() -> bool:
    try:
        open_device("cuda:0")
    except (UsageError, DeviceError):
        return False
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_feeds_a_device_ends_cleanly(name: str):
    repetitions, size = (2, 2048) if _has_cuda() else (1, 256)
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-W", "error", "-c", HEAD + PROGRAMS[name].replace("SIZE", str(size))]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(repetitions)
    ]
    ends = [(child.communicate(timeout=100), child.returncode) for child in children]
    assert ends == [(("", ""), 0)] * repetitions
