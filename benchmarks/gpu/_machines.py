"""What `stress.py` does around batches: one machine a framework that is slow and looks at batches, and unkindness."""

from __future__ import annotations

import contextlib
import importlib
import math
import random
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from _common import devices

from interlock.testing import gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.testing import Gate

ROWS = 4
CUDA = bool(devices())
KEEP_ONE_OF = 3
MOST_KEPT = 24
LONG_ONE_OF = 100
PRESSURE_ONE_OF = 8
COMPILED = (3, 6, 12, 300)
"""Delays that JAX has compiled."""
GATE_ONE_OF = 400
GATE_BATCHES = 6
GATE_S = 0.1
"""A gate opens by itself after so long: some variants wait for the consumer's stream."""


@dataclass(frozen=True)
class Plan:
    """How much of what.

    Attributes:
        batches: In each run.
        floats: In each row of a batch.
        keep: Whether batches are kept.
        until_s: When to stop earlier, on the clock of `time.perf_counter`.
    """

    batches: int
    floats: int
    keep: bool
    until_s: float = math.inf

    def is_over(self) -> bool:
        """Tell whether it is time to stop."""
        return time.perf_counter() > self.until_s


class Machine(Protocol):
    """One framework: makes batches, is slow, and looks at batches, all on the device and without a wait."""

    def delay(self, amount: float) -> None:
        """Keep the device busy: 1 is some ten microseconds."""
        ...

    def gate(self) -> Gate | None:
        """Hold the stream, if that can be done."""
        ...

    def squeeze(self, floats: int) -> None:
        """Allocate memory, fill it with something else and drop it."""
        ...

    def look(self, number: int, batch: Any) -> None:
        """Note on the device whether a batch is what it should be."""
        ...

    def wrong(self) -> int:
        """Return how many batches were not. Waits."""
        ...

    def make(self, number: int, rows: int, floats: int) -> Any:
        """Return a batch that is computed on the device."""
        ...

    def change(self, batch: Any) -> None:
        """Write to a batch, if the framework lets a program do that."""
        ...


class TorchMachine:
    """PyTorch, on its current stream."""

    def __init__(self, batches: int) -> None:
        self.torch = importlib.import_module("torch")
        self.device = "cuda" if CUDA else "cpu"
        self.bad = self.torch.zeros(batches, dtype=self.torch.bool, device=self.device)

    def delay(self, amount: float) -> None:
        """As in `Machine`."""
        if CUDA:
            self.torch.cuda._sleep(int(amount * 20_000))  # noqa: SLF001 - what PyTorch's own tests of streams use

    def gate(self) -> Gate | None:
        """As in `Machine`."""
        return gate(self.torch.cuda.current_stream(), timeout_s=GATE_S) if CUDA else None

    def squeeze(self, floats: int) -> None:
        """As in `Machine`."""
        self.torch.full((floats,), -1.0, device=self.device)

    def look(self, number: int, batch: Any) -> None:
        """As in `Machine`."""
        self.bad[number].logical_or_((batch != number).any())

    def wrong(self) -> int:
        """As in `Machine`."""
        return int(self.bad.sum())

    def make(self, number: int, rows: int, floats: int) -> Any:
        """As in `Machine`."""
        return self.torch.full((rows, floats), float(number), device=self.device)

    def change(self, batch: Any) -> None:
        """As in `Machine`."""
        batch.fill_(-3.0)


class CupyMachine:
    """CuPy, on its current stream."""

    def __init__(self, batches: int) -> None:
        self.cupy = importlib.import_module("cupy")
        self.bad = self.cupy.zeros(batches, dtype=bool)
        self.work = self.cupy.full((512, 512), 1e-3, dtype=self.cupy.float32)

    def delay(self, amount: float) -> None:
        """As in `Machine`."""
        for _ in range(max(1, int(amount))):
            self.work = self.work @ self.work

    def gate(self) -> Gate | None:
        """As in `Machine`."""
        return gate(self.cupy.cuda.get_current_stream(), timeout_s=GATE_S)

    def squeeze(self, floats: int) -> None:
        """As in `Machine`."""
        self.cupy.full((floats,), -1.0, dtype=self.cupy.float32)

    def look(self, number: int, batch: Any) -> None:
        """As in `Machine`."""
        self.bad[number : number + 1] |= (batch != number).any()

    def wrong(self) -> int:
        """As in `Machine`."""
        return int(self.bad.sum())

    def make(self, number: int, rows: int, floats: int) -> Any:
        """As in `Machine`."""
        return self.cupy.full((rows, floats), float(number), dtype=self.cupy.float32)

    def change(self, batch: Any) -> None:
        """As in `Machine`."""
        batch.fill(-3.0)


class JaxMachine:
    """JAX, which runs what it is given in order."""

    def __init__(self, batches: int) -> None:
        jnp = importlib.import_module("jax.numpy")
        self.bad = jnp.zeros(batches, bool)
        self.work = jnp.full((512, 512), 1e-3)
        self.busy, self.note, self.full = compiled()

    def delay(self, amount: float) -> None:
        """As in `Machine`."""
        self.work = self.busy(self.work, min(COMPILED, key=lambda times: abs(times - amount)))

    def gate(self) -> None:
        """As in `Machine`: JAX shows nobody its stream."""

    def squeeze(self, floats: int) -> None:
        """As in `Machine`; in sizes of a power of two, because each is compiled."""
        self.full(-1.0, 1, 1 << floats.bit_length())

    def look(self, number: int, batch: Any) -> None:
        """As in `Machine`."""
        self.bad = self.note(self.bad, batch, number)

    def wrong(self) -> int:
        """As in `Machine`."""
        return int(self.bad.sum())

    def make(self, number: int, rows: int, floats: int) -> Any:
        """As in `Machine`."""
        return self.full(float(number), rows, floats)

    def change(self, batch: Any) -> None:
        """As in `Machine`: a JAX program cannot, but it can give the memory away."""
        batch.delete()


@cache
def compiled() -> tuple[Any, Any, Any]:
    """Return what is compiled for JAX, once for all runs."""
    jax = importlib.import_module("jax")
    jnp = importlib.import_module("jax.numpy")

    def busy(work: Any, times: int) -> Any:  # a number that is not known beforehand would be waited for on the host
        return jax.lax.fori_loop(0, times, lambda _, x: x @ x * 1e-3, work)

    def note(bad: Any, batch: Any, number: Any) -> Any:
        return bad.at[number].max(jnp.any(batch != number))

    def full(number: Any, rows: int, floats: int) -> Any:
        return jnp.full((rows, floats), number, jnp.float32)

    return jax.jit(busy, static_argnums=1), jax.jit(note, donate_argnums=0), jax.jit(full, static_argnums=(1, 2))


MACHINES: dict[str, Callable[[int], Machine]] = {"torch": TorchMachine, "jax": JaxMachine, "cupy": CupyMachine}


class Unkind:
    """What happens around the batches: delays, scarce memory, batches that are kept. The same in each run."""

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan = plan
        self.machine = machine
        self.random = random.Random(7)  # noqa: S311 - not for secrets
        self.kept: list[tuple[int, Any]] = []
        self.gate: Gate | None = None
        self.gated = 0

    def before(self) -> None:
        """Keep the device busy, as a step of training would."""
        self.gated += 1
        if self.gate is None and self.random.randrange(GATE_ONE_OF) == 0:
            self.gate, self.gated = self.machine.gate(), 0
        elif self.gated == GATE_BATCHES:
            self.open()
        self.machine.delay(300 if self.random.randrange(LONG_ONE_OF) == 0 else self.random.uniform(3, 12))
        if self.random.randrange(PRESSURE_ONE_OF) == 0:
            self.machine.squeeze(self.random.choice((1, 1, 2, 4)) * ROWS * self.plan.floats)

    def open(self) -> None:
        """Open the gate, unless it opened by itself because somebody waited for the stream."""
        if self.gate is not None:
            with contextlib.suppress(TimeoutError):
                self.gate.open()
            self.gate = None

    def after(self, number: int, batch: Any, last: Callable[[int, Any], None]) -> None:
        """Keep the batch or not; call `last` for one that is let go after it was kept."""
        if self.plan.keep and number % KEEP_ONE_OF == 0:
            self.kept.append((number, batch))
        if len(self.kept) > MOST_KEPT:
            last(*self.kept.pop(self.random.randrange(MOST_KEPT)))
