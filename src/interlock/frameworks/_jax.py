"""JAX: asynchronous, and an array may be our memory itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from interlock._core._fence import Fence
from interlock._core._handover import Leaf, StreamDevice
from interlock._core._protocols import Export
from interlock.errors import UsageError
from interlock.frameworks import _jax_drain
from interlock.frameworks._jax_imports import Imports
from interlock.frameworks._jax_receiver import DeviceReceiver, Side
from interlock.frameworks._jax_sharded import HostShardedReceiver, ShardedReceiver
from interlock.frameworks._jax_unpack import arrival, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._fence import Timeline
    from interlock._core._handover import Placement, Receiver
    from interlock._core._protocols import Device, DeviceArray, Pieces


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
class JaxFramework:
    """Done is proved by XLA running the deleter of the imported memory, after the last computation on it.

    Source: measured with jax 0.10.2 and jaxlib 0.10.2 on the CPU: through DLPack the owner ends when the last
        computation that reads it has run; through `jax.device_put` it ends at some later call into JAX, or not at all.
        With jax 0.11.2 on CUDA through DLPack: the same, also while work is pending.
    """

    name = "jax"
    immutable = True

    def __init__(self) -> None:
        self._imports = Imports()

    def owns(self, value: object) -> bool:
        """As in `Framework`."""
        return isinstance(value, jax.Array)

    def runs(self, model: object) -> bool:
        """As in `Framework`: what `jax.jit` returned."""
        return isinstance(model, jax.stages.Wrapped)

    def home(self, model: object) -> str:  # noqa: ARG002
        """As in `Framework`: the default device."""
        return self.default_device()

    def prepare(self, model: Callable[[Any], Any], device: str) -> Callable[[Any], Any]:  # noqa: ARG002
        """As in `Framework`: `model` itself."""
        return model

    def fingerprint(self, model: object) -> None:  # noqa: ARG002
        """As in `Framework`; None: a jitted function holds its weights where nobody sees them."""
        return

    def default_device(self, sharding: Any = None) -> str:
        """As in `Framework`: where new arrays go now, or the first of the sharding's devices."""
        if sharding is not None:
            return _name_of(_devices_of(sharding)[0])
        config: Any = jax.config  # JAX gives it no types
        device = config.jax_default_device  # a device, the name of a platform, or None
        if device is None or isinstance(device, str):
            device = jax.local_devices(backend=device)[0]
        return _name_of(device)

    def receiver(
        self, device: Device, stream: Timeline, placement: Placement, open_device: Callable[[str], Device]
    ) -> Receiver | None:
        """As in `SupportsReceiver`: XLA's own arrays, or with `zero_copy` the slot; global ones with a sharding."""
        if placement.fixed:
            raise UsageError("JAX has no arrays at fixed addresses", hint="leave out fixed=True")
        if placement.sharding is not None:
            return self._sharded_receiver(device, placement, open_device)
        if not isinstance(device, StreamDevice):
            return None
        return DeviceReceiver(self._side(device, _device_at(device.index), placement), stream)

    def _sharded_receiver(self, device: Device, placement: Placement, open_device: Callable[[str], Device]) -> Receiver:
        devices = _devices_of(placement.sharding)
        if not isinstance(device, StreamDevice):
            return HostShardedReceiver(placement.sharding, devices, self.lend)
        sides = [self._side(open_device(_name_of(one)), one, placement) for one in devices]
        return ShardedReceiver(placement.sharding, sides)

    def _side(self, device: Any, jax_device: Any, placement: Placement) -> Side:
        return Side(device, jax_device, self._imports, zero_copy=placement.zero_copy)

    def lend(self, array: npt.NDArray[Any]) -> jax.Array:
        """As in `Framework`.

        Ordering: XLA reads the memory whenever the computations run; it holds the array's owner until then.
        """
        if arrival(array.dtype).as_is:
            return self._import(array.view(), array.dtype)
        packed = self._import(array.reshape(-1).view(np.uint8), array.dtype)
        return unpack(packed, [Leaf("", array.shape, array.dtype, 0)])[0]

    def _import(self, view: npt.NDArray[Any], dtype: np.dtype[Any]) -> jax.Array:
        self._imports.watch(view)
        try:
            return jnp.from_dlpack(view)
        except (TypeError, BufferError, RuntimeError) as error:
            raise UsageError(
                f"JAX cannot take an array of dtype {dtype}", why=str(error), hint="cast it in the source"
            ) from error

    def read_back(self, array: Any) -> npt.NDArray[Any] | None:
        """As in `Framework`: of a copy, because JAX keeps the host value of an array that was asked for it once."""
        return None if array.is_deleted() else np.asarray(jnp.copy(array))

    def device_arrays(
        self, value: Any, *, borrow: bool, open_device: Callable[[str], Device]
    ) -> DeviceArray | Pieces | None:
        """As in `SupportsDeviceArrays`."""
        return _jax_drain.device_arrays(value, borrow=borrow, open_device=open_device)

    def export(self, value: Any, *, borrow: bool) -> Export:
        """As in `Framework`: a copy is dispatched behind the array's producer, so a later donation does no harm."""
        array: jax.Array = value
        _jax_drain.refuse_valueless(array)
        held = array if borrow else jnp.copy(array)
        return Export(
            tuple(array.shape),
            np.dtype(array.dtype),
            Fence([(_Result(held), 1)]),
            stable=True,
            read=lambda: np.asarray(held),
        )


def process_rank() -> tuple[int, int] | None:
    """Return rank and number of processes if `jax.distributed` is initialised.

    Asked first whether it is: JAX counts processes by starting its backends, which takes the memory of GPUs.
    """
    asked = getattr(jax.distributed, "is_initialized", None)  # younger than the oldest JAX that we take
    if (asked is not None and not asked()) or jax.process_count() == 1:
        return None
    return jax.process_index(), jax.process_count()


def _device_at(index: int) -> Any:
    """Return the device of this process that CUDA counts as `index`.

    Raises:
        UsageError: JAX does not see it.
    """
    try:
        found = [one for one in jax.local_devices(backend="cuda") if one.local_hardware_id == index]
    except RuntimeError as error:
        raise UsageError("JAX sees no CUDA device", why=str(error), hint="pip install 'jax[cuda13]'") from error
    if not found:
        raise UsageError(f"JAX does not see cuda:{index}", hint="look at CUDA_VISIBLE_DEVICES and jax.local_devices()")
    return found[0]


def _devices_of(sharding: Any) -> list[Any]:
    """Return the devices of a sharding in an order that does not change.

    Raises:
        UsageError: Some belong to other processes, or it wants memory that is not a device's own.
    """
    if not sharding.is_fully_addressable:
        raise UsageError(
            "a feed fills only the devices of its own process",
            why="the sharding has others too",
            hint="feed each process its own part on its own devices, and join the parts with "
            "jax.make_array_from_process_local_data or jax.make_array_from_single_device_arrays",
        )
    devices = sorted(sharding.device_set, key=lambda one: one.id)
    kind = sharding.memory_kind
    if kind is not None and kind != devices[0].default_memory().kind:
        raise UsageError(f"a feed fills no memory of kind {kind!r}", hint="leave memory_kind out of the sharding")
    return devices


def _name_of(device: Any) -> str:
    """Return what Interlock calls one of JAX's devices."""
    if device.platform == "cpu":
        return "host"
    kind = "cuda" if device.platform == "gpu" else device.platform
    return f"{kind}:{device.local_hardware_id}"
