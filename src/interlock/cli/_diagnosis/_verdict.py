"""What limits a feed and a drain here: simple rules on measured figures. Pure: facts in, sentences out.

The rules. A feed copies samples into slots on worker threads while the link carries the slot before, so it is as fast
as the slower of the two. A drain syncs and hashes a shard while its sink's format writes the next, and the link
carries what comes after meanwhile, so it is as fast as the slowest of the four. Of the format nothing is measured. One
thread hashes a shard of `parquet:`, which is one file; several hash one of `npy:`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.cli._diagnosis._facts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.cli._diagnosis._facts import Disk, Facts, HostCopy, Link

_AS_GOOD_AS = 0.9
"""A share of a figure that counts as all of it: the fewest threads are wanted."""
_DEFAULT_WORKERS = 8
"""As a feed has, at most, unless it is told."""


def verdict(facts: Facts) -> Verdict:
    """Return what limits a feed and a drain on the machine that has these facts."""
    link = facts.links[0] if facts.links else None
    return Verdict(feed_verdict(facts.host_copies, link), drain_verdict(link, facts.hash_gb_per_s, facts.disk))


def feed_verdict(copies: Sequence[HostCopy], link: Link | None) -> str:
    """Return what limits a feed.

    Args:
        copies: Speed of the host, the fewest threads first.
        link: Speed of the device's link; None without a device.
    """
    speed = link.pinned_to_device_gb_per_s if link is not None else None
    if not copies:
        return "The host's copies were not measured, so nothing can be said."
    one, best = copies[0], max(copies, key=lambda copy: copy.gb_per_s)
    enough = next(copy for copy in copies if copy.gb_per_s >= _AS_GOOD_AS * best.gb_per_s)
    begin = f"One thread copies {_figure(one.gb_per_s)} GB/s"
    if speed is None:
        more = "" if enough is one else f", {enough.threads} threads {_figure(enough.gb_per_s)}"
        return (
            f"{begin}{more}. No device's link was measured: a feed to arrays on the CPU is as fast as that at most, "
            f"unless its source writes straight into slots (read_into)."
        )
    begin = f"{begin}, the link takes {_figure(speed)}"
    fill = next((copy for copy in copies if copy.gb_per_s >= _AS_GOOD_AS * speed), None)
    if fill is one:
        return f"{begin}: one thread fills the link, which is the limit."
    if fill is not None:
        return f"{begin}: {fill.threads} threads fill it, and then the link is the limit.{_workers(fill.threads)}"
    return (
        f"{begin}: {_threads(enough.threads)} {_figure(enough.gb_per_s)} of it. "
        f"Copying samples into slots is the limit; samples written straight into slots (a source with read_into) "
        f"would reach the link.{_workers(enough.threads)}"
    )


def drain_verdict(link: Link | None, hash_gb_per_s: float | None, disk: Disk | None) -> str:
    """Return what limits a drain.

    Args:
        link: Speed of the device's link; None without a device.
        hash_gb_per_s: Speed at which one thread hashes.
        disk: Speed of the storage; None if nobody asked.
    """
    speed = link.pinned_to_host_gb_per_s if link is not None else None
    told = f"The link takes {_figure(speed)} GB/s, " if speed is not None else ""
    if hash_gb_per_s is None:
        return "The storage was not measured, so nothing can be said."
    hashed = f"one thread hashes {_figure(hash_gb_per_s)}"
    if disk is None or disk.gb_per_s is None:
        more = "parquet: has one, npy: several. What the storage takes was not measured: --sink FOLDER does that."
        return _sentence(f"{told}{hashed} GB/s; {more}")
    said = f"{told}the storage takes {_figure(disk.gb_per_s)} GB/s, {hashed} meanwhile"
    if speed is not None and speed <= min(disk.gb_per_s, hash_gb_per_s):
        return _sentence(f"{said}: the link is the limit, unless the sink's format takes longer.")
    if disk.gb_per_s <= hash_gb_per_s:
        return _sentence(f"{said}: the storage is the limit, unless the sink's format takes longer.")
    other = "the link" if speed is not None and speed <= disk.gb_per_s else "the storage"
    return _sentence(f"{said}: hashing is the limit of parquet:; npy:, hashed by several threads, may reach {other}.")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _threads(count: int) -> str:
    return "it fills at most" if count == 1 else f"{count} threads fill at most"


def _workers(threads: int) -> str:
    """Return advice, where a feed would not do it by itself."""
    return f" Pass workers={threads}." if threads > _DEFAULT_WORKERS else ""


def _figure(gb_per_s: float) -> str:
    return f"{gb_per_s:.0f}" if gb_per_s >= 10 else f"{gb_per_s:.1f}" if gb_per_s >= 1 else f"{gb_per_s:.2g}"  # noqa: PLR2004 - two digits
