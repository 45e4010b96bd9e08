"""Urls of remote stores, through fsspec: the one place that opens them, and that keeps secrets out of messages."""

from __future__ import annotations

import re
from typing import Any

from interlock.errors import UsageError

_SECRETS = (
    (re.compile(r"://[^/\s@]+@"), "://…@"),
    (re.compile(r"(?i)([\w-]*(?:sig|signature|token|key|secret|password|credential)[\w-]*)=[^&\s'\"]+"), r"\1=…"),
)


def masked(text: str) -> str:
    """Return a message without what may be secret in it."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def opened(url: str, doing: str) -> tuple[Any, str]:
    """Return the file system of a url and the path in it.

    Args:
        url: The url.
        doing: What for, as `read`, for messages.

    Raises:
        UsageError: fsspec, or what it needs for the scheme, is not installed; or there is no such scheme.
    """
    what = f"cannot {doing} {masked(url)}"
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - local paths never load fsspec
    except ImportError as error:
        raise UsageError(what, why="fsspec is not installed", hint="pip install 'interlock[remote]'") from error
    try:
        system, path = url_to_fs(url)
    except ImportError as error:  # s3fs, gcsfs, adlfs, aiohttp: fsspec says which
        raise UsageError(what, why=str(error), hint="install what it names") from error
    except ValueError as error:
        raise UsageError(what, why=masked(str(error)), hint="check the url") from error
    return system, str(path)
