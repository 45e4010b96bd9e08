"""Where bytes live and how work on them is ordered. One device a file; none knows another."""

from __future__ import annotations

from interlock.devices._host import HostDevice
from interlock.devices._schedules import Schedule, parse_schedule
from interlock.devices._simulated import SimulatedDevice
from interlock.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._protocols import Device

__all__ = ["HostDevice", "Schedule", "SimulatedDevice", "open_device", "parse_schedule", "stand_in"]

_stand_ins: dict[str, Device] = {}


def stand_in(kind: str, device: Device) -> Callable[[], None]:
    """Let `device` answer to the name `kind` (and `kind:0`), as a simulated device does to `cuda` in a simulation.

    Returns:
        A function that ends it.
    """
    _stand_ins[kind] = device

    def remove() -> None:
        if _stand_ins.get(kind) is device:
            del _stand_ins[kind]

    return remove


def open_device(device: str | Device) -> Device:
    """Return the device that `device` names, or `device` itself if it is one.

    Args:
        device: `host` (also `cpu`), `cuda` (the calling thread's current device) or `cuda:N`, `simulated` or
            `simulated:SCHEDULE`, or an object with the methods of `Device`. In a simulation `cuda` is simulated.

    Raises:
        UsageError: There is no such device here; the message says what there is.
        DeviceError: The device is lost, or was opened before a fork.
    """
    if not isinstance(device, str):
        return device
    kind, _, argument = device.partition(":")
    if kind in _stand_ins and argument in {"", "0"}:
        return _stand_ins[kind]
    if kind in {"host", "cpu"} and not argument:
        return HostDevice()
    if kind == "cuda":
        return _open_cuda(argument)
    if kind == "simulated":
        return SimulatedDevice(argument or "lazy")
    raise UsageError(f"no device is called {device!r}", hint="use host, cuda, cuda:N, or simulated:SCHEDULE to test")


def _open_cuda(argument: str) -> Device:
    from interlock.devices._cuda import open_cuda  # noqa: PLC0415 - nobody else pays for it

    return open_cuda(argument)
