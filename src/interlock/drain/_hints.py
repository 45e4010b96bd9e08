"""What to do about a storage that refuses."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress

_STEPS = {
    errno.EDQUOT: "free some space for {place}, or have the quota raised",
    errno.EACCES: "check the permissions of {place}",
    errno.EPERM: "check the permissions of {place}",
    errno.EROFS: "{place} has to be mounted for writing; after a fault the system may have ended that itself",
    errno.EFBIG: "lower shard_bytes or raise the limit on file sizes",
    errno.EIO: "the storage of {place} failed: see what the system says about it, as in dmesg",
    errno.ESTALE: "somebody removed it on the server, or {place} has to be mounted again",
    errno.ENOTCONN: "{place} has to be mounted again",
    errno.ENOENT: "somebody removed {place} or a part of it",
    errno.ENODEV: "the device of {place} is gone",
}


def storage_hint(error: OSError, place: str) -> str:
    """Return the next step for whoever reads that the storage at `place` refused; empty if none is known."""
    is_remote = "://" in place and not place.startswith("file://")
    if is_remote and "://" not in str(error.filename):  # it is no error of the store: those name an object
        place = tempfile.gettempdir()
    if error.errno == errno.ENOSPC:
        return f"free some {'files (it has no inodes left)' if _lacks_inodes(place) else 'space'} for {place}"
    return _STEPS.get(error.errno or 0, "").format(place=place)


def _lacks_inodes(place: str) -> bool:
    with suppress(OSError, AttributeError):  # no such folder, or no such call
        found = os.statvfs(place)
        return bool(found.f_files) and not found.f_favail
    return False
