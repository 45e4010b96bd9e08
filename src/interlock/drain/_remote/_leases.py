"""Leases: who may write as a rank, until when. A store has no lock that ends with its holder.

A lease is an object with the name of the lock. It is created only where there is none, renewed by a thread while it is
held, and removed when it is released. Whoever finds one that has expired, or whose process on this very machine is
dead, may write its own over it. So that only one of several does, it first creates a *claim*, an object that is named
after the dead holder, and removes it afterwards; a claim of one that died meanwhile is claimed in the same way. Clocks
of machines decide only who may try: see `_entries` for what decides who commits.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from interlock.drain._files import seal, unseal
from interlock.errors import SinkConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock.drain._remote._client import Client

VALID_S = 60.0
_RENEW_EVERY_S = 15.0
_LONGEST_PAUSE_S = 1.0
_TOKEN = re.compile(r"[0-9a-f]{8}")
_OURS: set[str] = set()
"""Tokens of the leases that this process holds."""


@final
@dataclass(frozen=True, slots=True)
class Holder:
    """The content of a lease.

    Attributes:
        host: Name of the machine, for people.
        machine: Where `pid` means something: boot and namespace; empty if that is not known.
        pid: The process.
        token: Which drain of it.
        until: Until when it is valid, in seconds since 1970.
    """

    host: str
    machine: str
    pid: int
    token: str
    until: float

    @classmethod
    def now(cls, token: str) -> Holder:
        """Return the holder that this process is."""
        return cls(socket.gethostname(), _machine(), os.getpid(), token, round(time.time() + VALID_S, 3))

    @classmethod
    def parse(cls, content: bytes) -> Holder:
        """Return the holder that an object names; if it is damaged, one that holds nothing any more."""
        value: dict[str, Any] = unseal(content) or {}
        try:
            holder = cls(*(kind(value[name]) for name, kind in _FIELDS.items()))
        except (KeyError, TypeError, ValueError):
            return _NOBODY
        return holder if _TOKEN.fullmatch(holder.token) else replace(holder, token=_NOBODY.token)

    def content(self) -> bytes:
        """Return the content of the object."""
        return seal(asdict(self))

    @property
    def is_valid(self) -> bool:
        """Whether nobody else may take the lease."""
        return time.time() < self.until and not self._is_dead()

    def _is_dead(self) -> bool:
        if not self.machine or self.machine != _machine():
            return False
        if self.pid == os.getpid():
            return self.token not in _OURS  # the number of a process that is no more is ours now
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass
        return False


_NOBODY = Holder("", "", 0, "0" * 8, 0.0)
_FIELDS: dict[str, Callable[[Any], Any]] = {"host": str, "machine": str, "pid": int, "token": str, "until": float}


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


@final
class Lease:
    """As in `Lock`."""

    def __init__(self, leases: Leases, name: str) -> None:
        self._leases = leases
        self._name = name

    def release(self) -> None:
        """As in `Lock`."""
        self._leases.release(self._name)


@final
class Leases:
    """The leases that one drain holds, and the thread that renews them.

    Args:
        client: The store.

    Attributes:
        token: In each of them.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._pid = os.getpid()
        self._ended = threading.Event()
        self.token = secrets.token_hex(4)
        self.is_exclusive = client.refuses_second
        self._is_proven = not self.is_exclusive

    def take(self, name: str, text: str, wait_s: float, on_takeover: Callable[[], None]) -> Lease:
        """Take a lease.

        Args:
            name: Which.
            text: The sink, for messages.
            wait_s: How long to wait for somebody else to let go.
            on_takeover: Called, with the lease held, if somebody had it and did not let go.

        Raises:
            SinkConflictError: Somebody else holds it.
            OSError: The store refused.
        """
        until_s, pause_s, was_held = time.monotonic() + wait_s, 0.02, False
        while not self._create(name):
            holder = self._holder(name)
            if holder is None:  # it was let go just now
                continue
            was_held = not holder.is_valid and self._take_over(name, holder)
            if was_held:
                break
            if time.monotonic() >= until_s:
                self._forget()
                raise _conflict(text, f"{self._client.url}/{name}", self._holder(name) or holder)
            threading.Event().wait(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
        self._keep(name)
        try:
            if was_held:
                on_takeover()
        except BaseException:
            self.release(name)
            raise
        return Lease(self, name)

    def _take_over(self, name: str, dead: Holder) -> bool:
        """Become the holder in place of a dead one; return False if another does, or did just now."""
        if not self.is_exclusive:
            self._client.remove([name])
            return self._create(name)
        claims = [_claim(name, dead)]
        while not self._create(claims[-1]):
            other = self._holder(claims[-1])
            if other is None or other.is_valid or _claim(name, other) in claims:
                return False
            claims.append(_claim(name, other))
        try:
            is_his = self._holder(name) == dead
            if is_his:
                self._client.write(name, Holder.now(self.token).content())
        finally:
            self._client.remove(claims)
        return is_his

    def _create(self, name: str) -> bool:
        content = Holder.now(self.token).content()
        _OURS.add(self.token)
        if self.is_exclusive:
            if not self._client.create(name, content):
                return False
            if not self._is_proven:
                self.is_exclusive = self._client.creates_only_once(name, content)
                self._is_proven = True
            return True
        if self._holder(name) is not None:
            return False
        self._client.write(name, content)
        return self._is_mine(name)

    def _holder(self, name: str) -> Holder | None:
        try:
            return Holder.parse(self._client.read(name))
        except FileNotFoundError:
            return None

    def _is_mine(self, name: str) -> bool:
        holder = self._holder(name)
        return holder is not None and holder.token == self.token

    def check(self, names: tuple[str, ...]) -> None:
        """See that the first lease of some that was taken is still held.

        Raises:
            SinkConflictError: Somebody else took it, since it was not renewed in time.
            OSError: The store refused.
        """
        taken = next((name for name in names if name in self._held), None)
        if taken is None or not self._is_mine(taken):
            raise lost(f"{self._client.url}/{taken or names[0]}")

    def is_held(self, name: str) -> bool:
        """Tell whether anybody holds a lease."""
        holder = self._holder(name)
        return holder is not None and holder.is_valid

    def release(self, name: str) -> None:
        """Let go of a lease, if it is still held."""
        with self._lock:
            if self._pid != os.getpid() or name not in self._held:
                return
            self._held.discard(name)
            if not self._held:
                self._ended.set()
        with suppress(OSError):  # it expires
            if self._is_mine(name):
                self._client.remove([name])
        self._forget()  # not before: others would take over what is about to be removed

    def _forget(self) -> None:
        if not self._held:
            _OURS.discard(self.token)

    def _keep(self, name: str) -> None:
        with self._lock:
            self._held.add(name)
            if len(self._held) == 1:
                self._ended = threading.Event()
                arguments = (self._ended,)
                threading.Thread(target=self._renew, args=arguments, name="interlock-drain lease", daemon=True).start()

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(_RENEW_EVERY_S):
            for name in tuple(self._held):
                with suppress(OSError), self._lock:  # then at the next time; `check` tells if that is too late
                    if name in self._held and self._is_mine(name):
                        self._client.write(name, Holder.now(self.token).content())


def _claim(name: str, dead: Holder) -> str:
    """Return the name of the object which says that somebody takes over from a dead holder."""
    return f"{name}.after-{dead.token}"


def lost(where: str) -> SinkConflictError:
    """Return the error of a writer that lost its lease."""
    return SinkConflictError(
        "another drain writes to this sink now",
        why=f"it took over {where}, which this one did not renew in time or somebody removed",
        hint="what was committed stays, and this drain commits nothing more; run again when the other one has ended",
    )


def _conflict(text: str, where: str, holder: Holder) -> SinkConflictError:
    left_s = max(0.0, holder.until - time.time())
    return SinkConflictError(
        f"{text} is being written by another drain",
        why=f"process {holder.pid} on {holder.host} holds {where}",
        hint=f"wait until it ends; if it is dead, its hold ends in {left_s:.0f} s; processes of a job have a rank each",
    )
