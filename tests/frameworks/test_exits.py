"""A program may end at any time: with lent arrays alive, work pending and finalisers yet to run."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import gc, threading
import numpy as np
from interlock.lowlevel import HostMemory, Inbox, Loan, framework_named

inbox, ends = Inbox(), []

def lend(framework):
    loan = Loan(HostMemory.allocate(1 << 20, "host", on_device=False))
    ends.append(loan.on_end(inbox.post))
    return framework_named(framework).lend(np.asarray(loan).view("float32").reshape(512, 512))

kept = []
kept.append(kept)  # a cycle: only the collector or the end of the process lets go of what follows
"""

NUMPY = """
kept += [lend("numpy") for _ in range(4)]
crop = lend("numpy")[3:5, ::2]
"""

TORCH = """
import torch
kept += [lend("torch") for _ in range(4)]
crop = lend("torch")[3:5]
product = lend("torch") @ kept[-1]
kept.append(lend("torch").requires_grad_() * 2)
"""

JAX = """
import jax

@jax.jit
def step(weights, batch):
    for _ in range(4):
        weights = weights @ batch * 1e-3
    return weights

weights = lend("jax")
for _ in range(12):
    weights = step(weights, lend("jax"))  # queued; nobody waits for any of it
kept += [lend("jax") for _ in range(4)]
"""

THREAD = """
thread = threading.Thread(target=lambda: kept.append(lend("jax") + 1), daemon=True)
thread.start()
"""

SIMULATED = """
from interlock.lowlevel import SimulatedDevice
device = SimulatedDevice("lazy")
staging, memory = device.allocate_host(4096), device.allocate(4096)
device.copy(memory, staging, device.stream("copy"))
fence = device.record(device.stream("copy"))
"""

PROGRAMS = {
    "numpy": (NUMPY, 1),
    "simulated": (SIMULATED, 1),
    "torch": (TORCH, 2),
    "jax": (JAX, 3),
    "jax, waited for": (JAX + "weights.block_until_ready()", 3),
    "jax on a thread": (JAX + THREAD, 2),
    "jax, by an exception": (JAX + "raise SystemExit(0)", 2),
    "jax then torch": (JAX + TORCH, 1),
    "torch then jax": (TORCH + JAX, 1),
}
"""Program and repetitions; `benchmarks/exits.py` does many more."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_cleanly_with_arrays_alive_and_work_pending(name: str):
    program, repetitions = PROGRAMS[name]
    command = [sys.executable, "-W", "error", "-c", HEAD + program]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(repetitions)
    ]
    ends = [(child.communicate(timeout=100), child.returncode) for child in children]
    assert ends == [(("", ""), 0)] * repetitions
