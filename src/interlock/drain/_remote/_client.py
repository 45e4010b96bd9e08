"""Calls to a remote store: each is bounded in time, tried again where that may help, and fails with an `OSError`."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, final

from interlock._urls import masked, opened
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5, 2.0)
"""Before a call is tried again. Few: the clients of stores try again by themselves."""

_AT_ONCE = 16
_FINAL = (NotImplementedError, TypeError, ValueError, AttributeError, ImportError)
_FINAL_CODES = {
    errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR,
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.EINVAL,
}  # fmt: skip
_REFUSALS = {errno.EEXIST, errno.EINVAL}
"""How stores say that an object is there: the second is a condition that does not hold."""

_CODES: tuple[tuple[type[OSError], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (PermissionError, errno.EACCES),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
)


def check_url(url: str) -> None:
    """Refuse a url to which nothing can be written, or that says a secret.

    Raises:
        UsageError: It is one.
    """
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0] and ":" in rest.partition("@")[0]:
        raise UsageError(
            f"a {scheme}:// url with a password is no sink",
            why="it would be in messages and reports",
            hint="give it to fsspec in the environment or in ~/.config/fsspec",
        )
    if "?" in rest or "::" in url:
        raise UsageError(
            f"a {scheme}:// url with ? or :: is no sink",
            why="it names one object or goes through an archive or a cache",
            hint="write scheme://bucket/path",
        )


@final
class Client:
    """A folder of a remote store. Names are relative to it. All errors are `OSError`, without secrets.

    Args:
        url: The folder.
        timeout_s: Bound on each call, with all its attempts.

    Attributes:
        url: As given.

    Raises:
        UsageError: fsspec, or what it needs for the scheme, is not installed; or there is no such scheme.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._system, root = opened(url, "write to")
        self._root = root.rstrip("/")
        self._timeout_s = timeout_s
        self._made: set[str] = set()

    @property
    def refuses_second(self) -> bool:
        """Whether its class claims to create objects only where there is none, in one step."""
        kind = type(self._system)
        name = "_pipe_file" if getattr(self._system, "async_impl", False) else "pipe_file"
        from fsspec.spec import AbstractFileSystem  # noqa: PLC0415 - as above

        return getattr(kind, name, None) is not AbstractFileSystem.pipe_file

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def find(self, below: str = "") -> dict[str, int]:
        """Return the size of every file in a folder of it and below, by name; that is empty if all is one file."""
        folder = self._path(below) if below else self._root

        def action() -> dict[str, Any]:
            self._system.invalidate_cache()
            try:
                found: dict[str, Any] = self._system.find(folder, detail=True)
            except FileNotFoundError:
                return {}
            return found

        found = self._call("list", below, action)
        root = self._root.lstrip("/")
        names = {path.lstrip("/").removeprefix(root).lstrip("/"): info for path, info in found.items()}
        return {name: int(info.get("size") or 0) for name, info in names.items() if info.get("type") != "directory"}

    def read(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            FileNotFoundError: There is none.
        """
        content: bytes = self._call("read", name, lambda: self._system.cat_file(self._path(name)))
        return content

    def read_many(self, names: Iterable[str]) -> list[bytes]:
        """Return the contents of objects."""
        return self._each(self.read, names)

    def write(self, name: str, content: bytes) -> None:
        """Give an object a content."""
        self._make_parent(name)
        self._call("write", name, lambda: self._system.pipe_file(self._path(name), content))

    def create(self, name: str, content: bytes) -> bool:
        """Make an object if there is none of that name; tell whether it has this content now, which no other has."""
        self._make_parent(name)
        action = self._creation(name, content)
        until_s = time.monotonic() + self._timeout_s
        for pause_s in (*_PAUSES_S, None):
            try:
                self._bounded("create", name, action, until_s)
            except OSError as error:
                with suppress(FileNotFoundError):  # an attempt that failed may have made it all the same
                    return self.read(name) == content
                was_there = isinstance(error, FileExistsError)  # and was removed before it was read
                if pause_s is None or (_is_final(error) and not was_there):
                    raise
                threading.Event().wait(pause_s)
            else:
                return True
        raise AssertionError("unreachable")

    def creates_only_once(self, name: str, content: bytes) -> bool:
        """Tell whether an object that is there is not created again. It has this content."""
        try:
            self._call("create", name, self._creation(name, content))
        except OSError as error:
            return error.errno in _REFUSALS  # else nothing is known, and so nothing is promised
        return False

    def _creation(self, name: str, content: bytes) -> Callable[[], Any]:
        return lambda: self._system.pipe_file(self._path(name), content, mode="create")

    def upload(self, path: Path, name: str) -> None:
        """Make an object of a file; it appears whole if the store can do that."""
        self._make_parent(name)
        self._call("upload", name, lambda: self._system.put_file(str(path), self._path(name)))

    def download(self, name: str, path: Path) -> None:
        """Make a file of an object.

        Raises:
            FileNotFoundError: There is none.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._call("download", name, lambda: self._system.get_file(self._path(name), str(path)))

    def copy(self, name: str, target: str) -> None:
        """Copy an object."""
        self._make_parent(target)
        self._call("copy", name, lambda: self._system.cp_file(self._path(name), self._path(target)))

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, if they are there."""
        self._each(self._remove, names)

    def each(self, action: Callable[[str], None], names: Iterable[str]) -> None:
        """Do something with several names at a time."""
        self._each(action, names)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._call("remove", name, lambda: self._system.rm_file(self._path(name)))

    def _make_parent(self, name: str) -> None:
        """Make the folder of an object where the store has such: object stores have none."""
        parent = self._path(name).rpartition("/")[0]
        if parent.startswith("/") and parent not in self._made:
            self._call("make", name, lambda: self._system.makedirs(parent, exist_ok=True))
            self._made.add(parent)

    @staticmethod
    def _each(action: Callable[[str], T], names: Iterable[str]) -> list[T]:
        listed = list(names)
        if len(listed) < 2:  # noqa: PLR2004 - a thread more would do nothing
            return [action(name) for name in listed]
        with ThreadPoolExecutor(_AT_ONCE, "interlock-remote") as pool:
            return list(pool.map(action, listed))

    def _call(self, verb: str, name: str, action: Callable[[], T]) -> T:
        until_s = time.monotonic() + self._timeout_s
        for pause_s in _PAUSES_S:
            try:
                return self._bounded(verb, name, action, until_s)
            except OSError as error:
                if _is_final(error) or time.monotonic() + pause_s >= until_s:
                    raise
            threading.Event().wait(pause_s)
        return self._bounded(verb, name, action, until_s)

    def _bounded(self, verb: str, name: str, action: Callable[[], T], until_s: float) -> T:
        """Do something on a thread, and wait for it until a time on the monotonic clock.

        Raises:
            OSError: It failed, or is not done by then. The thread may do it later all the same.
        """
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(action())
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                errors.append(error)
            done.set()

        try:
            threading.Thread(target=run, name=f"interlock-remote {verb}", daemon=True).start()
        except RuntimeError:  # no thread starts while the interpreter ends
            run()
        where = f"{self.url}/{name}" if name else self.url
        if not done.wait(max(0.0, until_s - time.monotonic())):
            raise TimeoutError(errno.ETIMEDOUT, f"it did not {verb} within {self._timeout_s:g} s", where)
        if errors:
            raise _plain(errors[0], where) from None
        return results[0]


def _plain(error: BaseException, where: str) -> BaseException:
    """Return an error of the system that says the same, without secrets."""
    if not isinstance(error, Exception):
        return error
    text = masked(str(error)).strip() or type(error).__name__
    if not isinstance(error, OSError):
        code = errno.EINVAL if isinstance(error, _FINAL) else errno.EIO
        return OSError(code, f"{type(error).__name__}: {text}", where)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.errno or errno.EIO)
    return OSError(code, masked(error.strerror) if error.strerror else text, where)


def _is_final(error: OSError) -> bool:
    return error.errno in _FINAL_CODES or isinstance(error, TimeoutError)
