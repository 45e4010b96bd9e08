"""Where bytes live and how work on them is ordered. One device a file; none knows another."""

from __future__ import annotations

from interlock.devices._host import HostDevice
from interlock.devices._schedules import Schedule, parse_schedule
from interlock.devices._simulated import SimulatedDevice
from interlock.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from interlock._core._protocols import Device

__all__ = ["HostDevice", "Schedule", "SimulatedDevice", "open_device", "parse_schedule"]


def open_device(device: str | Device) -> Device:
    """Return the device that `device` names, or `device` itself if it is one.

    Args:
        device: `host` (also `cpu`), `simulated` or `simulated:SCHEDULE`, or an object with the methods of `Device`.

    Raises:
        UsageError: There is no such device here.
    """
    if not isinstance(device, str):
        return device
    kind, _, argument = device.partition(":")
    if kind in {"host", "cpu"} and not argument:
        return HostDevice()
    if kind == "simulated":
        return SimulatedDevice(argument or "lazy")
    raise UsageError(f"no device is called {device!r}", hint="use host, or simulated:SCHEDULE to test")
