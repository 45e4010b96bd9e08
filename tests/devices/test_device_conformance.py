"""The shipped suite, on every device and schedule that a machine without a GPU has."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.devices._cuda import CudaDevice
from interlock.lowlevel import Device, HostDevice, SimulatedDevice
from interlock.testing import DeviceConformance

SCHEDULES = [
    "lazy",
    "eager",
    "starve:copy",
    "starve:into",
    *(f"random:{seed}" for seed in range(5)),
]


class TestHostDevice(DeviceConformance):
    @pytest.fixture
    def device(self) -> Device:
        return HostDevice()


class TestSimulatedDevice(DeviceConformance):
    @pytest.fixture(params=SCHEDULES)
    def device(self, request: pytest.FixtureRequest) -> Device:
        return SimulatedDevice(request.param)


class TestCudaDevice(DeviceConformance):
    """The twin of the suite on a real one in tests/gpu."""

    @pytest.fixture
    def device(self, fake_driver: Any) -> Device:
        return CudaDevice(driver=fake_driver.FakeDriver())
