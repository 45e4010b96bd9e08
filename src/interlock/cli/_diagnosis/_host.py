"""What this process may use of the host: cores, memory, limits. Read from the system; nothing is measured here."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.cli._diagnosis._facts import HostFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_LIMIT = 1 << 60
"""Control groups of the first version write a huge number where there is no limit."""


def host_facts(root: Path = Path("/")) -> HostFacts:
    """Return the facts.

    Args:
        root: Folder with `proc`, `sys` and `dev`.
    """
    online = os.cpu_count() or 1
    usable = _usable_cores(online)
    memory = _meminfo(root)
    limit, in_group = _memory_of_group(root)
    available = [number for number in (memory.get("MemAvailable"), in_group) if number is not None]
    shared, shared_free = _shared_memory(root)
    nodes = _nodes(root)
    return HostFacts(
        cores_online=online,
        cores_usable=len(usable),
        cores_quota=_quota(root),
        memory_bytes=memory.get("MemTotal"),
        memory_limit_bytes=limit,
        memory_available_bytes=min(available, default=None),
        locked_memory_limit_bytes=_locked_memory_limit(),
        shared_memory_bytes=shared,
        shared_memory_free_bytes=shared_free,
        transparent_huge_pages=_huge_pages(root),
        numa_nodes=tuple(sorted(nodes)),
        numa_nodes_usable=tuple(sorted(node for node, cores in nodes.items() if cores & usable)),
    )


def _usable_cores(online: int) -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(online))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.removeprefix("-").isdecimal() else None


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Give the folders of the process's control group for `controller`, inner ones first: each may set a limit."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, names, place = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if names else "")
        folder = mount / place.strip("/")
        yield from (one for one in (folder, *folder.parents) if one.is_relative_to(mount))


def _quota(root: Path) -> float | None:
    quotas = []
    for folder in _group_folders(root, "cpu"):
        limit, _, period = (_text(folder / "cpu.max") or "").partition(" ")
        if limit.isdecimal() and period.isdecimal():
            quotas.append(int(limit) / int(period))
        share, each = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if share is not None and share > 0 and each:
            quotas.append(share / each)
    return min(quotas, default=None)


def _memory_of_group(root: Path) -> tuple[int | None, int | None]:
    """Return the lowest limit, and the least that is left below one; what only caches files can be had back."""
    limits, left = [], []
    files = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for folder in _group_folders(root, "memory"):
        for limit_name, used_name, cache_name in files:
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and limit < _NO_LIMIT:
                limits.append(limit)
                cached = _pairs(folder / "memory.stat").get(cache_name, 0)
                left.append(max(0, limit - (used or 0) + cached))
    return min(limits, default=None), min(left, default=None)


def _pairs(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdecimal()}


def _meminfo(root: Path) -> dict[str, int]:
    """Return the lines of `meminfo` in bytes."""
    return {name.rstrip(":"): kib << 10 for name, kib in _pairs(root / "proc/meminfo").items()}


def _locked_memory_limit() -> int | None:
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import resource  # noqa: PLC0415 - not on every system

        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return None if limit in {resource.RLIM_INFINITY, -1} else limit
    return None


def _shared_memory(root: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _huge_pages(root: Path) -> str | None:
    text = _text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    return next((word.strip("[]") for word in text.split() if word.startswith("[")), None)


def _nodes(root: Path) -> dict[int, set[int]]:
    """Return the cores of each node of the host's memory."""
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    return {int(folder.name[4:]): _cores(_text(folder / "cpulist") or "") for folder in folders}


def _cores(text: str) -> set[int]:
    """Read `0-3,8`."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
