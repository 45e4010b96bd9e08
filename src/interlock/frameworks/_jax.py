"""JAX on the CPU: asynchronous, and an array may be our memory itself."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import queue
import time
import weakref
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from interlock._core._fence import Fence
from interlock._core._protocols import Export
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class _Result:
    """The timeline of one asynchronous array: tick 1 is its value."""

    __slots__ = ("_array", "_cause")

    def __init__(self, array: Any) -> None:
        self._array = array
        self._cause: BaseException | None = None

    @property
    def name(self) -> str:
        return f"jax:{id(self._array):x}"

    def reached(self, tick: int, *, waiting: bool = False) -> bool:  # noqa: ARG002 - part of the protocol
        if self._cause is not None:
            return True
        if self._array.is_deleted():  # asked first, because `is_ready` of a deleted array crashes the process
            self._cause = RuntimeError("the array was donated or deleted before its value was taken")
            return True
        if not self._array.is_ready():
            return False
        try:
            self._array.block_until_ready()  # does not block any more, and raises what the computation did
        except RuntimeError as error:
            self._cause = error
        return True

    def failure(self, tick: int) -> BaseException | None:  # noqa: ARG002
        return self._cause

    def notify(self, wake: Callable[[], None]) -> bool:  # noqa: ARG002
        return False


@final
class _Imports:
    """Host arrays that XLA holds, so that the process ends after XLA's threads have let go of them.

    They need the interpreter for that, and one that asks for it while the interpreter shuts down aborts the process.
    `block_until_ready` is not enough: a thread lets go of its inputs a little after the result is ready.
    """

    _PAUSE_S = 0.02
    _QUIET_PAUSES = 3
    """Nothing runs any more if this many pauses in a row bring no end and use no more processor time than `_IDLE_S`."""
    _IDLE_S = 0.002
    _BOUND_S = 60.0

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[npt.NDArray[Any]]] = {}
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._numbers = itertools.count()
        atexit.register(self.settle)

    def watch(self, view: npt.NDArray[Any]) -> None:
        """Note that XLA is about to hold `view`, which nobody else does."""
        while self._take(0):
            pass
        number = next(self._numbers)
        self._held[number] = weakref.ref(view, lambda _: self._ended.put(number))

    def settle(self) -> None:
        """Block until no computation uses imported memory any more.

        What a live array or a view of it holds does no harm: that goes on the main thread. It cannot be told from what
        a computation holds whose result was thrown away, but the computation keeps the processor busy.
        """
        if not self._held:
            return
        live_arrays: Any = jax.live_arrays  # JAX gives it no types
        for array in live_arrays("cpu"):
            with contextlib.suppress(Exception):  # a computation that failed is over too
                array.block_until_ready()
        deadline, quiet = time.monotonic() + self._BOUND_S, 0
        while self._held and quiet < self._QUIET_PAUSES and time.monotonic() < deadline:
            used_s = time.process_time()
            quiet = 0 if self._take(self._PAUSE_S) or time.process_time() - used_s > self._IDLE_S else quiet + 1

    def _take(self, timeout_s: float) -> bool:
        try:
            self._held.pop(self._ended.get(timeout=timeout_s))
        except queue.Empty:
            return False
        return True


@final
class JaxFramework:
    """CPU arrays. Done is proved by XLA running the deleter of the imported memory, after the last computation on it.

    Source: measured with jax 0.10.2 and jaxlib 0.10.2 on the CPU: through DLPack the owner ends when the last
    computation that reads it has run; through `jax.device_put` it ends at some later call into JAX, or not at all.
    """

    name = "jax"

    def __init__(self) -> None:
        self._imports = _Imports()

    def owns(self, value: object) -> bool:
        """As in `Framework`."""
        return isinstance(value, jax.Array)

    def runs(self, model: object) -> bool:
        """As in `Framework`: what `jax.jit` returned."""
        return isinstance(model, jax.stages.Wrapped)

    def prepare(self, model: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """As in `Framework`: `model` itself."""
        return model

    def fingerprint(self, model: object) -> None:  # noqa: ARG002
        """As in `Framework`; None: a jitted function holds its weights where nobody sees them."""
        return

    def default_device(self, sharding: Any = None) -> str:
        """`host` if new arrays go to the CPU, else the platform they go to."""
        config: Any = jax.config
        device = config.jax_default_device
        platform = getattr(device, "platform", device) or jax.default_backend()
        return "host" if platform == "cpu" else str(platform)

    def lend(self, array: npt.NDArray[Any]) -> jax.Array:
        """As in `Framework`.

        Ordering: XLA reads the memory whenever the computations run; it holds the array's owner until then.
        """
        view = array.view()
        self._imports.watch(view)
        try:
            return jnp.from_dlpack(view)
        except (TypeError, BufferError, RuntimeError) as error:
            raise UsageError(
                f"JAX cannot take an array of dtype {array.dtype}", why=str(error), hint="cast it in the source"
            ) from error

    def export(self, value: Any, *, borrow: bool) -> Export:
        """As in `Framework`: a copy is dispatched behind the array's producer, so a later donation does no harm."""
        array: jax.Array = value
        if isinstance(array, jax.core.Tracer):
            raise UsageError(
                "an array given to the drain has no value yet",
                why="it is traced inside a jitted function",
                hint="return it from the function and put the result",
            )
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise UsageError(f"an array of {array.dtype} has no NumPy form", hint="put jax.random.key_data of it")
        if array.is_deleted():
            raise UsageError(
                "an array given to the drain was deleted",
                why="it was donated to a jitted function, or .delete() was called",
                hint="put it before it is donated",
            )
        if not array.is_fully_addressable:
            raise UsageError("an array with shards on other hosts cannot be drained", hint="put its addressable shards")
        held = array if borrow else jnp.copy(array)
        return Export(
            tuple(array.shape),
            np.dtype(array.dtype),
            Fence([(_Result(held), 1)]),
            stable=True,
            read=lambda: np.asarray(held),
        )
