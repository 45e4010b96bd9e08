"""How fast this host copies and hashes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from interlock._core._memory import HostMemory
from interlock.cli._diagnosis._facts import HostCopy
from interlock.drain._digests import hash_block

if TYPE_CHECKING:
    from collections.abc import Sequence

_REPEATS = 5
_HASHED_BYTES = 32 << 20


def thread_counts(cores: int) -> list[int]:
    """Return 1, 2, 4 and so on, and the number of cores itself."""
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
    return counts if cores in counts else [*counts, cores]


def measure_host_copies(counts: Sequence[int], copy_bytes: int, seconds: float) -> tuple[HostCopy, ...]:
    """Return how fast threads copy `copy_bytes` together, as workers do that fill a slot.

    Takes twice as much memory while it runs.

    Args:
        counts: Numbers of threads.
        copy_bytes: Each thread copies an equal part of it.
        seconds: No further number of threads is begun after that.
    """
    ends_s = time.monotonic() + seconds
    source = np.ones(copy_bytes, np.uint8)
    memory = HostMemory.allocate(copy_bytes, "host", on_device=False)  # as slots are
    target = np.frombuffer(memory.view(), np.uint8)
    found: list[HostCopy] = []
    for threads in counts:
        if found and time.monotonic() > ends_s:
            break
        with ThreadPoolExecutor(threads) as pool:
            parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
            _copy_all(pool, parts)  # starts the threads, and on the first round makes the pages
            took_s = median(_copy_all(pool, parts) for _ in range(_REPEATS))
        found.append(HostCopy(threads, round(copy_bytes / 1e9 / took_s, 2)))
    return tuple(found)


def _copy_all(pool: ThreadPoolExecutor, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    began = time.perf_counter()
    for future in [pool.submit(np.copyto, target, source) for target, source in parts]:
        future.result()
    return time.perf_counter() - began


def measure_hash() -> float:
    """Return how many GB/s one thread hashes, as a drain does with each shard."""
    data = bytes(_HASHED_BYTES)
    times: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        hash_block(data)
        times.append(time.perf_counter() - began)
    return round(_HASHED_BYTES / 1e9 / median(times), 2)
