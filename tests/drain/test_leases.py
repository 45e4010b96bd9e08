"""Leases of remote stores, call by call: whatever others do between two calls, one holds a lease at a time."""

from __future__ import annotations

import errno
import time

import pytest

from interlock.drain._files import seal, unseal
from interlock.drain._remote import _client, _leases
from interlock.drain._remote._client import Client
from interlock.drain._remote._leases import Leases
from interlock.errors import SinkConflictError

LOCK = "_interlock/open"


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def lease(path):
    """The file that the lease is."""
    return path / LOCK


@pytest.fixture
def between(store, monkeypatch):
    """Has something done once, before a call to the store of some number; counts the calls."""
    calls: list[str] = []

    def do(number, action, kinds=("pipe", "cat", "rm")):
        def hook(call, _path):
            if call in kinds:
                calls.append(call)
                if len(calls) == number:
                    monkeypatch.setattr(store, "hook", staticmethod(lambda *_: None))
                    action()

        calls.clear()
        monkeypatch.setattr(store, "hook", staticmethod(hook))
        return calls

    return do


def leases(path, scheme="bucket"):
    return Leases(Client(f"{scheme}://{path}", 5.0))


def take(one, wait_s=0.0, taken=lambda: None):
    return one.take(LOCK, "npy:out", wait_s, taken)


def is_taken(one):
    try:
        take(one)
    except SinkConflictError:
        return False
    return True


def leave_expired(lease, token="0" * 8):
    value = {"host": "elsewhere", "machine": "m", "pid": 1, "token": token, "until": time.time() - 1}
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.write_bytes(seal(value))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_lease_that_is_let_go_meanwhile_is_taken(path, between, number, monkeypatch):
    """As ranks do that start at once: each opens the sink for a moment, and the others wait."""
    monkeypatch.setattr(_client, "_PAUSES_S", (0.0, 0.0, 0.0))
    first = leases(path)
    held = take(first)
    between(number, held.release)
    mine = take(leases(path), wait_s=5.0)
    assert (path / LOCK).exists()
    mine.release()
    assert not (path / LOCK).exists()


@pytest.mark.parametrize("number", [2, 3])
def test_a_lease_that_somebody_else_gets_when_it_is_let_go_is_left_to_them(path, between, number):
    first, second, third = leases(path), leases(path), leases(path)
    held, got = take(first), []

    def change_hands():
        held.release()
        between(1, lambda: got.append(is_taken(third)))

    between(number, change_hands)
    got.append(is_taken(second))
    assert sorted(got) == [False, True]
    assert [third._is_mine(LOCK), second._is_mine(LOCK)] == got


@pytest.mark.parametrize("number", range(1, 12))
def test_of_two_that_find_an_expired_lease_one_gets_it(path, lease, between, number):
    leave_expired(lease)
    first, second = leases(path), leases(path)
    got = []
    calls = between(number, lambda: got.append(is_taken(second)))
    got.insert(0, is_taken(first))
    if len(calls) < number:
        assert got == [True]
        return
    assert sorted(got) == [False, True]
    assert [first._is_mine(LOCK), second._is_mine(LOCK)] == got


@pytest.mark.parametrize("number", range(1, 12))
def test_whoever_dies_while_it_takes_over_is_followed_by_the_next(path, lease, between, number):
    leave_expired(lease)

    def die():
        raise Killed

    calls = between(number, die)
    try:
        take(leases(path))
    except Killed:
        assert len(calls) == number
    between(0, die)
    _leases._OURS.clear()  # so its process counts as dead
    last, other, marks = leases(path), leases(path), []
    take(last, wait_s=5.0, taken=lambda: marks.append("taken over"))
    assert last._is_mine(LOCK)
    assert marks == ["taken over"]
    assert not is_taken(other)


def test_nothing_is_kept_of_leases_that_were_refused_or_let_go(path):
    before = len(_leases._OURS)
    held = take(leases(path))
    assert not is_taken(leases(path))
    assert len(_leases._OURS) == before + 1
    held.release()
    assert len(_leases._OURS) == before


def test_a_lease_is_taken_over_from_whatever_name_it_says(path, lease):
    """The name of its holder does not lead anywhere."""
    leave_expired(lease, "../../escaped")
    assert is_taken(leases(path))
    assert {one.name for one in path.parent.iterdir()} == {"out"}
    assert {one.name for one in lease.parent.iterdir()} == {"open"}


def test_a_lease_is_ours_until_it_is_gone(path, lease, store, monkeypatch):
    """Else another thread of this process would take it over while it is let go, and lose it to that."""
    held = take(leases(path))
    seen = []
    monkeypatch.setattr(store, "hook", staticmethod(lambda call, _: seen.append((call, is_ours_valid(lease)))))
    held.release()
    assert ("rm", True) in seen
    assert all(valid for _, valid in seen)


def is_ours_valid(lease):
    return _leases.Holder.parse(lease.read_bytes()).is_valid


@pytest.mark.parametrize("scheme", ["bucket", "loose"])
def test_what_a_store_refuses_is_not_found_out_from_a_fault_of_the_network(path, store, monkeypatch, scheme):
    monkeypatch.setattr(_client, "_PAUSES_S", (0.0, 0.0, 0.0))
    calls = []

    def hook(call, _path):
        if call == "pipe":
            calls.append(call)
            if len(calls) == 2:
                raise ConnectionResetError(errno.ECONNRESET, "reset by peer")

    monkeypatch.setattr(store, "hook", staticmethod(hook))
    one = leases(path, scheme)
    take(one)
    assert len(calls) == 3
    assert one.is_exclusive == (scheme == "bucket")
    assert (unseal((path / LOCK).read_bytes()) or {})["token"] == one.token
