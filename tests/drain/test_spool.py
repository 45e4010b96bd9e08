"""The folder of this machine for shards on their way to a store."""

from __future__ import annotations

import errno
import tempfile

import numpy as np
import pytest

from interlock.drain import Drain
from interlock.drain._locks import FolderLock
from interlock.drain._remote import _spool
from interlock.errors import SinkError


@pytest.fixture
def temporaries(tmp_path, monkeypatch):
    """The system's folder for temporaries."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_spool_of_a_process_that_is_no_more_goes_when_the_next_is_made(temporaries):
    dead = temporaries / f"{_spool._PREFIX}dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "part").write_bytes(b"rows")
    alive = _spool.Spool()
    kept = alive.path("part").parent
    assert list(temporaries.iterdir()) == [kept]
    other = _spool.Spool()
    assert {kept, other.path("part").parent} == set(temporaries.iterdir())


def test_a_spool_that_another_process_makes_now_is_left_to_it(temporaries, monkeypatch):
    """As ranks of one machine do, which start at once: the lock is there and not taken yet."""

    def looked_at_meanwhile(path, text):
        monkeypatch.setattr(_spool, "FolderLock", FolderLock)
        path.touch()
        _spool._remove_abandoned()
        return FolderLock(path, text)

    monkeypatch.setattr(_spool, "FolderLock", looked_at_meanwhile)
    spool = _spool.Spool()
    assert spool.path("part").parent.is_dir()
    assert [one.name for one in temporaries.iterdir()] == [spool.path("part").parent.name]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOENT])
def test_what_this_machine_refuses_is_not_put_down_to_the_store(temporaries, tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, "no")

    drain = Drain(f"npy:bucket://{tmp_path}/out")
    monkeypatch.setattr(_spool.Spool, "_folder", refuse)
    drain.put([1], np.ones(1))
    with pytest.raises(SinkError) as error:
        drain.close()
    assert str(temporaries) in error.value.hint
    assert "bucket://" not in error.value.hint
