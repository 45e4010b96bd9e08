"""The report of a machine for a terminal: readable without colour and at 80 columns."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from interlock.cli._diagnosis._facts import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from interlock.cli._diagnosis._facts import Facts, Finding, FrameworkFacts, HostFacts, Link, Report
    from interlock.devices._cuda_facts import DeviceFacts, DriverFacts

_INDENT = (0, 0, 0, 2)
_MIB = 1 << 20


def as_text(report: Report, *, width: int = 80) -> str:
    """Return the report as plain text without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        print_text(report, console)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def print_text(report: Report, console: Console) -> None:
    """Write the report to a console."""
    facts = report.facts
    _section(console, "versions", _lines(_versions(facts)))
    _section(console, "devices", _lines(_devices(facts)))
    if facts.frameworks:
        _section(console, "what frameworks see", _lines((one.name, _framework(one)) for one in facts.frameworks))
    _section(console, "host", _lines(_host(facts.host)))
    for link in facts.links:
        _section(console, f"link of {link.device}, GB/s", _link(link))
    if facts.host_copies:
        title = f"copies on the host, GB/s ({_size(facts.copy_bytes)} in all)"
        _section(console, title, _copies(facts))
    if facts.disk is not None or facts.hash_gb_per_s is not None:
        _section(console, "writing", _lines(_writing(facts)))
    _section(console, "what limits a feed here", Text(report.verdict.feed))
    _section(console, "what limits a drain here", Text(report.verdict.drain))
    for text in facts.unmeasured:
        console.print(Text(f"not measured: {text}", style="dim"))
    for finding in report.findings:
        _print_finding(console, finding)
    _print_end(report, console)


def _section(console: Console, title: str, content: RenderableType) -> None:
    console.print(Text(title, style="bold"))
    console.print(Padding(content, _INDENT))
    console.print()


def _print_finding(console: Console, finding: Finding) -> None:
    label, style = ("broken", "bold red") if finding.broken else ("warning", "bold yellow")
    console.print(Text.assemble((label, style), f": {finding.what}", f": {finding.why}" if finding.why else ""))
    if finding.hint:
        console.print(Text(f"hint: {finding.hint}", style="dim"))


def _print_end(report: Report, console: Console) -> None:
    count = len(report.findings)
    verdict = _counted(count, "finding") if count else "nothing wrong was found"
    style = "bold red" if report.broken else "bold yellow" if count else "bold green"
    console.print(Text(f"{verdict}, in {report.seconds:.1f} s", style=style))


def _lines(rows: Iterable[tuple[str, str]]) -> Table:
    """Return lines of a label and its text, which may wrap."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text)
    return grid


def _numbers(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Return a table whose first column is labels, and the others figures."""
    grid = Table.grid(padding=(0, 2))
    for index, text in enumerate(head):
        grid.add_column(text, justify="right" if index else "left", no_wrap=True)
    grid.add_row(*head)
    for row in rows:
        grid.add_row(*row)
    return grid


def _versions(facts: Facts) -> Iterable[tuple[str, str]]:
    yield "python", f"{facts.python}, {facts.system}"
    for one in facts.packages:
        if one.version is None:
            yield one.name, f"not installed: {one.install}"
        else:
            yield one.name, f"{one.version}: {one.problem}" if one.problem else one.version


def _devices(facts: Facts) -> Iterable[tuple[str, str]]:
    yield "driver", _driver(facts.driver)
    for device in facts.devices:
        yield f"cuda:{device.index}", _device(device)


def _driver(driver: DriverFacts) -> str:
    if not driver.found:
        return "no CUDA driver"
    version = driver.version or "unknown version"
    if driver.error is not None:
        return f"{version}: {driver.error}"
    serves = "" if driver.cuda_version is None else f", CUDA {driver.cuda_version}"
    return f"{version}{serves}, {_counted(driver.device_count, 'device')}"


def _device(device: DeviceFacts) -> str:
    free = "" if device.memory_free_bytes is None else f", {_size(device.memory_free_bytes)} free"
    pcie = "" if device.pcie is None else f" on PCIe {device.pcie.generation} x{device.pcie.width}"
    node = "" if device.numa_node is None else f", NUMA node {device.numa_node}"
    peers = ", ".join(f"cuda:{peer}" for peer in device.peers)
    return "\n".join(
        [
            f"{device.name}, {_size(device.memory_bytes)}{free}",
            f"{device.pci_bus_id}{pcie}{node}",
            f"compute capability {device.compute_capability}, {_counted(device.copy_engines, 'copy engine')}",
            f"stream memory operations: {'yes' if device.stream_memory_operations else 'no'}",
            *([f"reaches the memory of {peers}"] if peers else []),
        ]
    )


def _framework(one: FrameworkFacts) -> str:
    if one.error is not None:
        return one.error
    build = f"built for CUDA {one.cuda_version}" if one.cuda_version else ""
    if one.name == "torch" and one.cuda_version is None:
        build = "a build for the CPU"
    if one.devices:
        seen = f"{_counted(len(one.devices), 'device')}: {', '.join(dict.fromkeys(one.devices))}"
    else:
        seen = f"no CUDA device, only {', '.join(one.platforms) or 'nothing'}"
    return ", ".join(filter(None, [seen, build]))


def _host(host: HostFacts) -> Iterable[tuple[str, str]]:
    quota = "no quota" if host.cores_quota is None else f"a quota of {host.cores_quota:g}"
    yield "cores", f"{host.cores_usable} of {host.cores_online}, {quota}"
    if host.memory_bytes is not None:
        limit = "no limit" if host.memory_limit_bytes is None else f"a limit of {_size(host.memory_limit_bytes)}"
        free = "" if host.memory_available_bytes is None else f", {_size(host.memory_available_bytes)} available"
        yield "memory", f"{_size(host.memory_bytes)}, {limit}{free}"
    locked = host.locked_memory_limit_bytes
    yield (
        "locked",
        "no limit" if locked is None else f"a limit of {_size(locked)}; what a CUDA driver pins is not held to it",
    )
    if host.shared_memory_bytes is not None:
        free = _size(host.shared_memory_free_bytes or 0)
        yield "shared", f"the folder /dev/shm has {_size(host.shared_memory_bytes)}, {free} free"
    if host.transparent_huge_pages is not None:
        yield "huge pages", host.transparent_huge_pages
    if host.numa_nodes:
        yield "NUMA nodes", f"{_listed(host.numa_nodes)}; this process runs on {_listed(host.numa_nodes_usable) or '?'}"


def _link(link: Link) -> Group:
    table = _numbers(
        ("", "pinned", "pageable"),
        [
            ("to the device", _speed(link.pinned_to_device_gb_per_s), _speed(link.pageable_to_device_gb_per_s)),
            ("to the host", _speed(link.pinned_to_host_gb_per_s), _speed(link.pageable_to_host_gb_per_s)),
            ("both at once", _speed(link.pinned_both_gb_per_s), ""),
        ],
    )
    notes = [f"medians of {link.repeats}, copies of {_size(link.copy_bytes)}"]
    if link.pin_ms_per_gib is not None and link.pin_huge_pages_ms_per_gib is not None:
        with_pages, without = f"{link.pin_huge_pages_ms_per_gib:.0f}", f"{link.pin_ms_per_gib:.0f}"
        notes.append(f"pinning fresh memory takes {with_pages} ms per GiB, {without} without huge pages")
    return Group(table, *(Text(note, style="dim") for note in notes))


def _copies(facts: Facts) -> Table:
    head = ("threads", *(str(copy.threads) for copy in facts.host_copies))
    return _numbers(head, [("together", *(_speed(copy.gb_per_s) for copy in facts.host_copies))])


def _writing(facts: Facts) -> Iterable[tuple[str, str]]:
    if facts.hash_gb_per_s is not None:
        yield "hashing", f"{_speed(facts.hash_gb_per_s)} GB/s, one thread"
    disk = facts.disk
    if disk is not None and disk.gb_per_s is not None:
        yield "storage", f"{disk.gb_per_s:.2f} GB/s: {_size(disk.written_bytes)}, synced each {_size(disk.piece_bytes)}"
    elif disk is not None:
        yield "storage", disk.error or "nothing was written in time"


def _speed(gb_per_s: float | None) -> str:
    return "-" if gb_per_s is None else f"{gb_per_s:.1f}"


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / _MIB:.3g} MiB"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(str(node) for node in nodes)
