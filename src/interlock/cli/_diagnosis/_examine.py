"""One examination of a machine: who is asked what, in which order, and within which time."""

from __future__ import annotations

import importlib.util
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from interlock.cli._diagnosis._children import Answer, ask, framework_facts
from interlock.cli._diagnosis._copies import measure_hash, measure_host_copies, thread_counts
from interlock.cli._diagnosis._facts import Disk, Facts, HostFacts, Link, Report
from interlock.cli._diagnosis._findings import findings
from interlock.cli._diagnosis._host import host_facts
from interlock.cli._diagnosis._packages import installed_versions, packages
from interlock.cli._diagnosis._probe import PIECE_BYTES
from interlock.cli._diagnosis._verdict import verdict
from interlock.devices._cuda_facts import DeviceFacts, DriverFacts, PcieLink

if TYPE_CHECKING:
    from collections.abc import Callable

_FRAMEWORKS = ("torch", "jax", "cupy")
_ALL_S = 20.0
_FRAMEWORKS_S = 9.0
_CUDA_S = 7.0
_COPIES_S = 1.5
_DISK_S = 4.0
_LATE_S = 2.0
"""A measurement is told to end so much before it is ended."""
_SHORTEST_S = 1.0
COPY_BYTES = 256 << 20
"""Of host copies, and of copies over the link. The most memory in use at once is three times as much."""
_PART_OF_MEMORY = 16
_SMALLEST_BYTES = 16 << 20


@final
class _Clock:
    """Says how much time there is, of `_ALL_S`."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return round(time.monotonic() - self._began_s, 1)

    def at_most(self, seconds: float) -> float:
        """Return `seconds`, or what is left."""
        return max(_SHORTEST_S, min(seconds, _ALL_S - (time.monotonic() - self._began_s)))


def examine(*, quick: bool, sink: str | None, tell: Callable[[str], None]) -> Report:
    """Find out all there is. Blocks: some seconds as a rule, 20 at most.

    Args:
        quick: Measure nothing.
        sink: Folder whose storage is measured, if any.
        tell: Called with what is looked at now.
    """
    clock = _Clock()
    host = host_facts()
    size = _copy_bytes(host)
    tell("asking frameworks")
    names = [name for name in _FRAMEWORKS if _is_there(name)]
    with ThreadPoolExecutor(len(_FRAMEWORKS)) as pool:
        answers = list(pool.map(lambda name: ask(name, timeout_s=_FRAMEWORKS_S), names))
    tell("asking the driver" if quick else "measuring the link")
    cuda_s = clock.at_most(_CUDA_S)
    cuda = ask("cuda", str(0 if quick else size), str(cuda_s - _LATE_S), timeout_s=cuda_s)
    driver, devices, links = _cuda_facts(cuda)
    facts = Facts(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages=packages(installed_versions(), driver.cuda_version),
        driver=driver,
        devices=devices,
        frameworks=tuple(framework_facts(name, answer) for name, answer in zip(names, answers, strict=True)),
        host=host,
        links=links,
    )
    if not quick:
        facts = _measured(facts, size, sink, tell, clock)
    facts = replace(facts, unmeasured=_unmeasured(facts, quick=quick, sink=sink))
    return Report(facts, verdict(facts), findings(facts), clock.passed_s)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _copy_bytes(host: HostFacts) -> int:
    """Return how large copies are, so that memory suffices."""
    available = host.memory_available_bytes
    if available is None:
        return COPY_BYTES
    return min(COPY_BYTES, max(_SMALLEST_BYTES, available // _PART_OF_MEMORY >> 20 << 20))


def _cuda_facts(answer: Answer) -> tuple[DriverFacts, tuple[DeviceFacts, ...], tuple[Link, ...]]:
    """Return what the driver's probe told, also when it died on the way."""
    driver = DriverFacts(found=False)
    devices: dict[int, DeviceFacts] = {}
    links: list[Link] = []
    for found in answer.found:
        if "driver" in found:
            driver = DriverFacts(**found["driver"])
        elif "device" in found:
            one = _device(found["device"])
            devices[one.index] = one
        elif "pcie" in found:
            index = found["pcie"].pop("index")
            devices[index] = replace(devices[index], pcie=PcieLink(**found["pcie"]))
        elif "link" in found:
            links.append(Link(**found["link"]))
    if answer.error is not None and driver.error is None:
        # A link that was not reached in time is no fault of the driver.
        late = not answer.crashed and driver.found
        driver = driver if late and devices else replace(driver, found=True, error=answer.error)
    return driver, tuple(devices.values()), tuple(links)


def _device(values: dict[str, Any]) -> DeviceFacts:
    pcie = values["pcie"]
    return DeviceFacts(
        **{**values, "pcie": None if pcie is None else PcieLink(**pcie), "peers": tuple(values["peers"])}
    )


def _measured(facts: Facts, size: int, sink: str | None, tell: Callable[[str], None], clock: _Clock) -> Facts:
    tell("measuring host copies")
    copies = measure_host_copies(thread_counts(facts.host.cores), size, _COPIES_S)
    hashed = measure_hash()
    disk = None
    if sink is not None:
        tell("measuring the storage")
        disk_s = clock.at_most(_DISK_S)
        disk = disk_facts(ask("disk", sink, str(disk_s - _LATE_S), timeout_s=disk_s))
    return replace(facts, copy_bytes=size, host_copies=copies, hash_gb_per_s=hashed, disk=disk)


def disk_facts(answer: Answer) -> Disk:
    """Return what the storage's probe found before its time was over."""
    if not answer.found:
        return Disk(0, PIECE_BYTES, None, answer.error)
    last = answer.found[-1]
    speed = last["written_bytes"] / 1e9 / max(last["seconds"], 1e-9)
    return Disk(last["written_bytes"], PIECE_BYTES, round(speed, 3))


def _unmeasured(facts: Facts, *, quick: bool, sink: str | None) -> tuple[str, ...]:
    if quick:
        return ("no speed: --quick measures nothing",)
    missing = []
    if not facts.devices:
        missing.append(f"the link: {_why_no_device(facts)}")
    reached = {link.device for link in facts.links}
    late = [f"cuda:{device.index}" for device in facts.devices if f"cuda:{device.index}" not in reached]
    if late:
        missing.append(f"the link of {', '.join(late)}: the time was over")
    if sink is None:
        missing.append("the storage: --sink FOLDER measures it")
    return tuple(missing)


def _why_no_device(facts: Facts) -> str:
    driver = facts.driver
    if not driver.found:
        return "there is no CUDA driver here"
    if driver.error is not None:
        return "the CUDA driver does not work"
    if not driver.device_count:
        return "the CUDA driver shows no device"
    return "cuda-bindings is not installed"
