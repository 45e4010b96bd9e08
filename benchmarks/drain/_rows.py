"""The rows that all writers get: what they look like, how they are made, and how they are recognised when read back."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

MB = 1 << 20


@dataclass(frozen=True)
class Workload:
    """Rows of one kind.

    Attributes:
        name: As in the table.
        shape: Of a row.
        dtype: Of a row.
        batch: Rows of a step.
        steps: Of a run.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    batch: int
    steps: int

    @property
    def rows(self) -> int:
        """Rows of a run."""
        return self.batch * self.steps

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def step_bytes(self) -> int:
        """Bytes of a step."""
        return self.batch * self.row_bytes

    @property
    def run_bytes(self) -> int:
        """Bytes of a run."""
        return self.steps * self.step_bytes

    def tiny(self) -> Workload:
        """Return rows of this kind that are small in every way: for a run that only loads what writers load."""
        return replace(self, shape=(4,) * len(self.shape), batch=min(self.batch, 4), steps=2)

    def base(self) -> npt.NDArray[Any]:
        """Return the rows of a step without their ids; not to be written to."""
        return base_rows(self.batch, self.shape, self.dtype)

    def times(self, factor: int) -> Workload:
        """Return a run of so many times as many rows."""
        return replace(self, steps=self.steps * factor)


WORKLOADS = (
    Workload("embeddings, 2 KB rows", (512,), "float32", 256, 2048),
    Workload("hidden states, 32 KB rows", (4, 4096), "float16", 64, 512),
    Workload("weather fields, 303 MB rows", (73, 721, 1440), "float32", 1, 6),
)
SMALL = (
    Workload("embeddings, 2 KB rows", (512,), "float32", 256, 32),
    Workload("hidden states, 32 KB rows", (4, 4096), "float16", 64, 8),
    Workload("weather fields, 3 MB rows", (5, 181, 900), "float32", 1, 4),
)
"""For a smoke test."""


class Rows:
    """The model, in place of one: rows of random numbers, in memory of their own each step, with their id in front.

    Args:
        workload: What to make.
        model_s: Seconds that a step takes besides, while the processors are free, as a model on another device would.

    Attributes:
        workload: As given.
        began_s: When the first step began.
    """

    def __init__(self, workload: Workload, model_s: float = 0.0) -> None:
        self.workload = workload
        self.began_s = 0.0
        self._model_s = model_s
        torch.set_num_threads(1)  # copies need no more, and threads that wait for each other would disturb the writers
        self._base = torch.from_numpy(workload.base())

    def ids(self, step: int) -> range:
        """Return the ids of a step."""
        return range(step * self.workload.batch, (step + 1) * self.workload.batch)

    def make(self, step: int) -> torch.Tensor:
        """Return the rows of a step."""
        if not step:
            self.began_s = time.perf_counter()
        if self._model_s:
            time.sleep(self._model_s)
        return self.of(torch.arange(self.ids(step).start, self.ids(step).stop, dtype=torch.int32))

    def of(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of a batch of ids, which are consecutive."""
        rows = self._base[: len(ids)].clone()
        rows.view(len(ids), -1).view(torch.int32)[:, 0] = ids
        return rows


@lru_cache(1)
def base_rows(batch: int, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return the rows of a step before they are given their ids: normal numbers, the same in every process."""
    count = batch * math.prod(shape)
    block = np.random.default_rng(0).standard_normal(min(count, MB), np.float32).astype(dtype)
    return np.resize(block, count).reshape(batch, *shape)


def ids_in(rows: npt.NDArray[Any], workload: Workload) -> npt.NDArray[np.int32]:
    """Return the ids that rows carry, once the last of them was compared number by number with what it must be.

    Raises:
        AssertionError: They are not those of the workload.
    """
    if rows.shape[1:] != workload.shape or rows.dtype != workload.dtype:
        raise AssertionError(f"rows are {rows.dtype} of shape {rows.shape[1:]}")
    flat = rows.reshape(len(rows), -1)
    words = flat.view(np.int32)
    ids: npt.NDArray[np.int32] = np.array(words[:, 0])
    wanted = workload.base().reshape(-1, *flat.shape[1:]).view(np.int32)[int(ids[-1]) % workload.batch]
    if not np.array_equal(words[-1, 1:], wanted[1:]):
        raise AssertionError(f"row {ids[-1]} has other values than it was given")
    return ids
