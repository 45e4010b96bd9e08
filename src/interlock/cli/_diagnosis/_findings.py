"""What does not work on a machine, or costs speed. Pure: facts in, findings out; each rule is a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.cli._diagnosis._facts import GIB, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interlock.cli._diagnosis._facts import Facts, FrameworkFacts

_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""What a lane of each PCIe generation carries, before the protocol's own bytes."""
_SLOW_LINK = 0.7
"""A link of pinned copies does 0.8 to 0.9 of its lanes; below this share something is wrong."""
_SLOW_DEVICE = 0.8
"""Share of the fastest device's link below which another's is named."""
_SMALL_SHARED_MEMORY_BYTES = GIB
_SMALL_MEMORY_BYTES = 2 * GIB


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Return what is found to be wrong, what is broken first."""
    found = [one for rule in _RULES for one in rule(facts)]
    return tuple(sorted(found, key=lambda one: not one.broken))


def _driver(facts: Facts) -> Iterator[Finding]:
    driver = facts.driver
    if driver.error is not None:
        yield Finding(
            "the CUDA driver does not work",
            driver.error,
            "nvidia-smi may say more; in a container, see that it was started with its GPUs",
            broken=True,
        )
    elif driver.found and not driver.device_count:
        yield Finding(
            "the CUDA driver shows no device",
            "there is none, or CUDA_VISIBLE_DEVICES hides it",
            "unset CUDA_VISIBLE_DEVICES to see",
        )


def _packages(facts: Facts) -> Iterator[Finding]:
    for package in facts.packages:
        if package.problem:
            yield Finding(f"{package.name} {package.version} does not fit", package.problem, package.install)
    missing = [one for one in facts.packages if one.version is None and one.name in {"cuda-core", "cuda-bindings"}]
    if missing and facts.driver.device_count:
        names = " and ".join(one.name for one in missing)
        verb = "is" if len(missing) == 1 else "are"
        yield Finding(
            f"{names} {verb} not installed", "a feed and a drain cannot use the GPU without", missing[0].install
        )
    major = int((facts.driver.cuda_version or "0").partition(".")[0])
    bindings = next((one.version for one in facts.packages if one.name == "cuda-bindings"), None)
    if major and bindings is not None and int(bindings.partition(".")[0]) > major:
        yield Finding(
            f"cuda-bindings {bindings} is newer than the driver",
            f"the driver serves CUDA {facts.driver.cuda_version}",
            f"pip install 'cuda-bindings<{major + 1}', or a newer driver",
        )


def _frameworks(facts: Facts) -> Iterator[Finding]:
    for one in facts.frameworks:
        if one.crashed:
            yield Finding(
                f"{one.name} cannot be imported",
                one.error or "",
                f"try: python -c 'import {one.name}'",
                broken=facts.driver.found or one.name != "cupy",  # CuPy is for CUDA only, and may want its driver
            )
        elif one.error is not None and facts.driver.device_count:
            yield Finding(f"{one.name} could not be asked for its devices", one.error)
        elif facts.driver.device_count:
            yield from _against_driver(one, facts)


def _against_driver(framework: FrameworkFacts, facts: Facts) -> Iterator[Finding]:
    """Compare what a framework sees with what the driver shows."""
    count, cuda = facts.driver.device_count, facts.driver.cuda_version or "13"
    major = "12" if cuda.startswith("12") else "13"
    if framework.devices:
        if len(framework.devices) != count:
            yield Finding(f"{framework.name} sees {len(framework.devices)} of {count} devices")
        return
    install = {
        "torch": "pip install --force-reinstall torch",
        "jax": f"pip install -U 'jax[cuda{major}]'",
    }.get(framework.name, f"pip install cupy-cuda{major}x")
    if framework.name == "torch" and framework.cuda_version is None:
        yield Finding("torch is a build for the CPU, beside a GPU", f"it is version {framework.version}", install)
    elif framework.cuda_version is not None and _numbers(framework.cuda_version) > _numbers(cuda):
        yield Finding(
            f"{framework.name} sees no GPU",
            f"it was built for CUDA {framework.cuda_version}, the driver serves {cuda}",
            "update the driver, or install a build for an older CUDA",
        )
    else:
        yield Finding(
            f"{framework.name} sees no GPU", f"it runs on {', '.join(framework.platforms) or 'nothing'}", install
        )


def _cores(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    if host.cores_quota is not None and host.cores_quota < host.cores_usable:
        yield Finding(
            f"the control group gives {host.cores_quota:g} cores' worth of time, of {host.cores_usable} cores",
            "more worker threads than that are stopped in turns",
            f"pass workers={host.cores} to feeds, or raise the quota",
        )


def _numa(facts: Facts) -> Iterator[Finding]:
    usable = facts.host.numa_nodes_usable
    for device in facts.devices:
        if device.numa_node is not None and usable and device.numa_node not in usable:
            yield Finding(
                f"cuda:{device.index} is at NUMA node {device.numa_node}, this process at {_listed(usable)}",
                "copies cross between the processors",
                f"numactl --cpunodebind={device.numa_node} --membind={device.numa_node} …",
            )


def _memory(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    for link in facts.links:
        if link.error is not None:
            limit = host.locked_memory_limit_bytes
            small = limit is not None and limit < link.copy_bytes
            yield Finding(
                f"{link.device} could not be measured",
                link.error,
                f"the limit on locked memory is {limit} bytes: raise it (ulimit -l unlimited)" if small else "",
            )
    if host.memory_available_bytes is not None and host.memory_available_bytes < _SMALL_MEMORY_BYTES:
        yield Finding(
            f"only {host.memory_available_bytes / GIB:.1f} GiB of memory are left",
            "a feed and a drain take up to 1 GiB each unless told",
            "pass a smaller budget_bytes",
        )
    if facts.devices and host.transparent_huge_pages == "never":
        yield Finding(
            "transparent huge pages are off",
            "fresh staging memory takes longer to pin",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    shared = host.shared_memory_bytes
    if shared is not None and shared < _SMALL_SHARED_MEMORY_BYTES:
        yield Finding(
            f"the folder /dev/shm has {shared / (1 << 20):.0f} MiB",
            "worker processes of a torch DataLoader pass batches through it and die when it is full",
            "start the container with --shm-size=8g; Interlock's threads do not need it",
        )


def _links(facts: Facts) -> Iterator[Finding]:
    speeds = {link.device: link.pinned_to_device_gb_per_s for link in facts.links}
    fastest = max((speed for speed in speeds.values() if speed is not None), default=0.0)
    for device in facts.devices:
        name, pcie, speed = f"cuda:{device.index}", device.pcie, speeds.get(f"cuda:{device.index}")
        if speed is None:
            continue
        if pcie is not None and (pcie.generation < pcie.max_generation or pcie.width < pcie.max_width):
            yield Finding(
                f"the link of {name} is PCIe {pcie.generation} x{pcie.width}",
                f"the device can do PCIe {pcie.max_generation} x{pcie.max_width}",
                "see the slot, the riser and the firmware's settings",
            )
        could = _LANE_GB_PER_S.get(pcie.generation, 0.0) * pcie.width if pcie is not None else 0.0
        if speed < _SLOW_LINK * could:
            yield Finding(f"the link of {name} carries {speed:.1f} GB/s", f"its lanes could carry {could:.0f}")
        if speed < _SLOW_DEVICE * fastest:
            yield Finding(f"the link of {name} carries {speed:.1f} GB/s", f"another device's carries {fastest:.1f}")


def _disk(facts: Facts) -> Iterator[Finding]:
    if facts.disk is not None and facts.disk.error is not None:
        yield Finding("the sink's storage could not be measured", facts.disk.error)


_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _driver,
    _packages,
    _frameworks,
    _cores,
    _numa,
    _memory,
    _links,
    _disk,
)


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(str(node) for node in nodes)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
