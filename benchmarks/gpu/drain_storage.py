"""One row of 300 MB from each step on a GPU to a storage: what a program loses to it, and what bounds it.

    python benchmarks/gpu/drain_storage.py [--save] [--only torch] [--output-mb 300] [--step-ms 300] [--steps 20]

Steps are matrix products that end in a float32 output, in PyTorch and in JAX. Each program runs without output, with
its rows given to `Drain` and forgotten (`null:`), and with `npy:` in /dev/shm and on the disk under the working
directory; a run ends when everything is committed, which on the disk means synced. Two lengths of a step: one as long
as such models take, which leaves the storage time, and one as short as the link, which no disk keeps up with. The
limits are measured in the same run: plain large writes and an fsync by one thread and by four, and the pinned link.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from _common import (
    Outcome,
    Report,
    arguments,
    devices,
    one_by_one,
    pinned_link_gb_per_s,
    require_cuda,
    storage_gb_per_s,
    wanted,
)

from interlock import Drain

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - named to the reader as a storage that is no disk
SHORT_S = 0.01
SHORT_STEPS = 3
"""How many times as many short steps are timed together."""
GOAL = 1.1
_PARTS = ("encode", "write", "fsync", "hash")


class Program(Protocol):
    """A model.

    Attributes:
        output_bytes: Bytes of the output of a step.
    """

    output_bytes: int

    def step(self, number: int) -> Any:
        """Queue a step; return its output, one row that begins with the step's number."""
        ...

    def wait(self) -> None:
        """Wait for the device."""
        ...


class TorchProgram:
    """In PyTorch; see `torch_drain.Problem`."""

    def __init__(self, output_bytes: int, step_s: float, width: int) -> None:
        from torch_drain import Problem  # noqa: PLC0415 - a framework that may be missing

        self._problem = Problem(output_bytes, step_s, width, "cuda" if devices() else "cpu")
        self.output_bytes = self._problem.output_bytes

    def step(self, number: int) -> Any:
        """As in `Program`."""
        import torch  # noqa: PLC0415 - as above

        with torch.inference_mode():
            return self._problem.step(number)[None]

    def wait(self) -> None:
        """As in `Program`."""
        self._problem.wait()


class JaxProgram:
    """In JAX: as many products as PyTorch's step of that length has."""

    def __init__(self, output_bytes: int, step_s: float, width: int) -> None:
        import jax  # noqa: PLC0415 - a framework that may be missing
        import jax.numpy as jnp  # noqa: PLC0415 - as above

        shape = (1, output_bytes // 4)
        self.output_bytes = shape[1] * 4
        self._last: Any = None
        keys = jax.random.split(jax.random.key(0))
        state, weights = (jax.random.normal(key, (width, width), jnp.bfloat16) for key in keys)
        weights = weights / width**0.5

        def run(products: int, number: Any) -> Any:
            last = jax.lax.fori_loop(0, products, lambda _, value: (value @ weights).astype(value.dtype), state)
            return jnp.full(shape, last[0, 0].astype(jnp.float32)).at[0, 0].set(number)

        self._run = jax.jit(run)
        self._products = 1
        each = []
        for self._products in (8, 40):
            self.step(0)
            self.wait()
            began_s = time.perf_counter()
            for number in range(5):
                self.step(number)
            self.wait()
            each.append((time.perf_counter() - began_s) / 5)
        product_s = max((each[1] - each[0]) / 32, each[1] / 80)  # a product is never free, whatever disturbed the clock
        self._products = max(1, round(8 + (step_s - each[0]) / product_s))

    def step(self, number: int) -> Any:
        """As in `Program`."""
        self._last = self._run(self._products, float(number))
        return self._last

    def wait(self) -> None:
        """As in `Program`."""
        self._last.block_until_ready()


class Bare:
    """Steps whose outputs are dropped."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        for number in range(steps):
            self._program.step(number)
        self._program.wait()

    def close(self) -> None:
        """As in `Variant`."""


class Drained:
    """Steps whose outputs go to a drain; a run ends when they are committed."""

    def __init__(self, program: Program, scheme: str, place: Path | None) -> None:
        self._program = program
        self._numbers = count()
        self._folder = place and tempfile.TemporaryDirectory(prefix="interlock-benchmark-", dir=place)
        self.drain = Drain(f"{scheme}:{self._folder.name}/out" if self._folder else f"{scheme}:")

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        for _ in range(steps):
            number = next(self._numbers)
            self.drain.put([number], {"output": self._program.step(number)})
        self.drain.flush()

    def close(self) -> None:
        """As in `Variant`."""
        self.drain.close()
        if self._folder:
            self._folder.cleanup()


def note(variant: Any, outcome: Outcome) -> None:
    """Say where the time of a drain went."""
    if isinstance(variant, Drained):
        done = variant.drain.statistics().as_dict()
        parts = {part: done[f"{part}_s"] for part in _PARTS}
        outcome.extra = {"host syncs": done["host_syncs"], "wait_slot_s": done["wait_slot_s"], **parts}
        outcome.note = ", ".join(f"{part} {value:.1f}" for part, value in parts.items() if value > 0.05)


def makers(program: Program) -> dict[str, Callable[[], Any]]:
    """Return the programs to run: the base first."""
    found: dict[str, Callable[[], Any]] = {
        "no output": partial(Bare, program),
        "null:": partial(Drained, program, "null", None),
    }
    if SHARED_MEMORY.is_dir():
        found["npy: in /dev/shm"] = partial(Drained, program, "npy", SHARED_MEMORY)
    found["npy: on the disk"] = partial(Drained, program, "npy", Path.cwd())
    return found


def measure(report: Report, name: str, program: Program, step_s: float, steps: int, disk_gb_per_s: float) -> None:
    """Run one program with steps of one length; there is a goal where the disk is fast enough for it."""
    outcomes = one_by_one(makers(program), count=1, steps=steps, warm=min(2, steps), finish=note)
    base = outcomes[0]
    length = f"{base.median_s * 1e3:.0f} ms" if base.seconds else ""
    label = f"{name}, {length}"
    for outcome in outcomes:
        if not outcome.seconds:
            report.rows.append((name, "", outcome.name, "", "", "", outcome.note))
            continue
        ratio, speed = outcome.median_s / base.median_s, program.output_bytes / outcome.median_s / 1e9
        outcome.extra.update({"x no output": ratio, "gb_per_s": speed})
        report.rows.append(
            (name, length, outcome.name, f"{outcome.median_s * 1e3:.1f}", f"{speed:.2f}", f"{ratio:.3f}", outcome.note)
        )
        needed = program.output_bytes / step_s / 1e9
        if outcome.name == "npy: on the disk" and needed < disk_gb_per_s:
            report.goal(f"{label}: {outcome.name} / no output", ratio, GOAL, at_most=True)
    report.figures.setdefault("programs", {})[label] = {
        outcome.name: {"seconds": outcome.seconds, "note": outcome.note, **outcome.extra} for outcome in outcomes
    }


def main() -> None:
    given = arguments(
        __doc__,
        output_mb=(300, "size of the output of a step"),
        step_ms=(300, "length of a long step without output"),
        steps=(20, "steps that are timed together"),
    )
    width = 4096
    if given.smoke:
        given.output_mb, given.step_ms, given.steps, width = 1, 5, 3, 64
        if not devices():
            os.environ["JAX_PLATFORMS"] = "cpu"
    else:
        require_cuda()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    columns = ("program", "step", "output to", "ms a step", "GB/s", "x no output", "note: seconds of writers")
    report = Report("gpu-drain-storage", "A row of 300 MB a step to a storage", columns)
    output_bytes = given.output_mb * 10**6
    places = {"/dev/shm": SHARED_MEMORY, "disk": Path.cwd()}  # noqa: S108 - as above
    limits = {}
    for storage, place in places.items():
        if place.is_dir():
            rates = [storage_gb_per_s(place, threads, 12 * output_bytes) for threads in (1, 4)]
            limits[storage] = max(rates)
            report.figures.setdefault("storage_gb_per_s", {})[storage] = rates
            said = f"{rates[0]:.2f} GB/s with one thread, {rates[1]:.2f} with 4"
            report.lines.append(f"{storage}: plain writes of 16 MB, then fsync: {said}")
    if devices():
        link = report.figures["link_gb_per_s"] = pinned_link_gb_per_s("d2h", output_bytes)
        report.lines.append(f"pinned link: {link:.1f} GB/s")
    programs: dict[str, Callable[..., Program]] = {"torch": TorchProgram, "JAX": JaxProgram}
    for name in wanted(list(programs), given.only):
        for step_s in dict.fromkeys((given.step_ms / 1e3, min(SHORT_S, given.step_ms / 1e3))):
            try:
                program = programs[name](output_bytes, step_s, width)
            except Exception as error:  # noqa: BLE001 - a framework that is not installed is a row of the table
                report.rows.append((name, "", "", "", "", "", f"not run: {str(error)[:80]}"))
                continue
            steps = given.steps * (1 if step_s > SHORT_S else SHORT_STEPS)
            measure(report, name, program, step_s, steps, 0.0 if given.smoke else limits["disk"])
    report.show(save=given.save)


if __name__ == "__main__":
    main()
