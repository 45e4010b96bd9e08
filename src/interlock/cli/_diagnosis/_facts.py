"""What is known of a machine, as plain values. Names carry their units; None is what nothing told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from interlock.devices._cuda_facts import DeviceFacts, DriverFacts

GIB = 1 << 30


@final
@dataclass(frozen=True, slots=True)
class Package:
    """A package that Interlock works with.

    Attributes:
        name: As it is known.
        version: Version that is installed, or None.
        install: Command that installs it, or a version that fits.
        problem: Why the installed version does not fit; empty if it does.
    """

    name: str
    version: str | None
    install: str
    problem: str = ""


@final
@dataclass(frozen=True, slots=True)
class FrameworkFacts:
    """What a framework sees, asked in a process of its own.

    Attributes:
        name: `torch`, `jax` or `cupy`.
        version: As it says itself.
        cuda_version: CUDA that it was built for; None for a build without.
        platforms: Kinds of devices that it runs on.
        devices: Names of its CUDA devices.
        error: What it said against using devices, or why it could not be asked.
        crashed: Whether its import failed, or ended the process.
        seconds: How long it took to import it and ask.
    """

    name: str
    version: str | None = None
    cuda_version: str | None = None
    platforms: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    error: str | None = None
    crashed: bool = False
    seconds: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class HostFacts:
    """The host, as this process may use it.

    Attributes:
        cores_online: Cores of the machine.
        cores_usable: Cores that the process may run on.
        cores_quota: Cores' worth of time that its control group gives it; None for no quota.
        memory_bytes: Memory of the machine.
        memory_limit_bytes: What its control group may take; None for no limit.
        memory_available_bytes: What it may still take, of both.
        locked_memory_limit_bytes: What it may lock; None for no limit.
        shared_memory_bytes: Size of `/dev/shm`; None if there is none.
        shared_memory_free_bytes: Free part of that.
        transparent_huge_pages: `always`, `madvise` or `never`.
        numa_nodes: Nodes of the machine.
        numa_nodes_usable: Nodes of the cores that the process may run on.
    """

    cores_online: int
    cores_usable: int
    cores_quota: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_available_bytes: int | None = None
    locked_memory_limit_bytes: int | None = None
    shared_memory_bytes: int | None = None
    shared_memory_free_bytes: int | None = None
    transparent_huge_pages: str | None = None
    numa_nodes: tuple[int, ...] = ()
    numa_nodes_usable: tuple[int, ...] = ()

    @property
    def cores(self) -> int:
        """Threads that can run at once, at least 1."""
        quota = self.cores_usable if self.cores_quota is None else round(self.cores_quota)
        return max(1, min(self.cores_usable, quota))


@final
@dataclass(frozen=True, slots=True)
class Link:
    """Speed of a device's link; medians.

    Attributes:
        device: `cuda:0`.
        copy_bytes: Size of one copy.
        repeats: Measurements of each figure.
        pinned_to_device_gb_per_s: From pinned memory.
        pinned_to_host_gb_per_s: To pinned memory.
        pinned_both_gb_per_s: Both at once, added up.
        pageable_to_device_gb_per_s: From ordinary memory.
        pageable_to_host_gb_per_s: To ordinary memory.
        pin_ms_per_gib: Pinning fresh memory of ordinary pages.
        pin_huge_pages_ms_per_gib: The same after huge pages were asked for.
        error: Why not all of it could be measured.
    """

    device: str
    copy_bytes: int
    repeats: int
    pinned_to_device_gb_per_s: float | None = None
    pinned_to_host_gb_per_s: float | None = None
    pinned_both_gb_per_s: float | None = None
    pageable_to_device_gb_per_s: float | None = None
    pageable_to_host_gb_per_s: float | None = None
    pin_ms_per_gib: float | None = None
    pin_huge_pages_ms_per_gib: float | None = None
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class HostCopy:
    """Speed of copies from host memory to host memory.

    Attributes:
        threads: How many copied, each a part of its own.
        gb_per_s: All together; the median.
    """

    threads: int
    gb_per_s: float


@final
@dataclass(frozen=True, slots=True)
class Disk:
    """Speed of the storage below a folder.

    Attributes:
        written_bytes: How much was written and synced.
        piece_bytes: Each after so many bytes.
        gb_per_s: The whole, syncs included; None if not one piece was done in time.
        error: Why it could not be measured.
    """

    written_bytes: int
    piece_bytes: int
    gb_per_s: float | None
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not work, or costs speed.

    Attributes:
        what: The thing, and what is wrong with it.
        why: What was seen, or what follows.
        hint: The next step.
        broken: Whether something that is installed does not work at all.
    """

    what: str
    why: str = ""
    hint: str = ""
    broken: bool = False


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a feed and a drain on this machine, in a few sentences each."""

    feed: str
    drain: str


@final
@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found out.

    Attributes:
        system: Operating system and architecture.
        python: Version of Python.
        packages: What is installed, and what is not.
        driver: The CUDA driver.
        devices: Its devices.
        frameworks: What those that are installed see.
        host: The host.
        links: Speed of the links, one per device that was reached in time.
        copy_bytes: Size of the host copies.
        host_copies: Speed of the host, by number of threads.
        hash_gb_per_s: Speed at which one thread hashes, as a drain does with each shard.
        disk: Speed of the storage that was asked about.
        unmeasured: What was not measured, and why.
    """

    system: str
    python: str
    packages: tuple[Package, ...]
    driver: DriverFacts
    devices: tuple[DeviceFacts, ...]
    frameworks: tuple[FrameworkFacts, ...]
    host: HostFacts
    links: tuple[Link, ...] = ()
    copy_bytes: int = 0
    host_copies: tuple[HostCopy, ...] = ()
    hash_gb_per_s: float | None = None
    disk: Disk | None = None
    unmeasured: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Facts, and what follows from them.

    Attributes:
        facts: What was found out.
        verdict: What limits feeds and drains.
        findings: What does not work or costs speed; what is broken first.
        seconds: How long it took.
    """

    facts: Facts
    verdict: Verdict
    findings: tuple[Finding, ...] = field(default=())
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether something that is installed does not work."""
        return any(one.broken for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "format": 1,
            **asdict(self.facts),
            "verdict": asdict(self.verdict),
            "findings": [asdict(one) for one in self.findings],
            "ok": not self.broken,
            "seconds": self.seconds,
        }
