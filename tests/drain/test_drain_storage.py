"""Folders that are not ours, storage that refuses, recovery, exits."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from interlock.drain import Crop, Drain, _publish, open_sink, read_status, verify_sink
from interlock.drain._files import check_of
from interlock.drain._folder import Folder
from interlock.drain._manifest import ShardRecord
from interlock.errors import SinkConflictError, SinkError, UsageError


def write(sink, ids, value=1.0, **options):
    with Drain(sink, **options) as drain:
        drain.put(ids, np.full(len(ids), value))


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", program, *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


# ---------------------------------------------------------------- whose folder


def test_a_folder_of_something_else_is_refused_and_not_touched(sink, folder):
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(SinkConflictError, match="written by something else"):
        Drain(sink)
    with pytest.raises(SinkConflictError, match="written by something else"):
        Drain(sink, restart=True)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_file_in_place_of_the_folder_is_refused(sink, folder):
    folder.write_text("mine")
    with pytest.raises(SinkConflictError, match="is a file; name a folder"):
        Drain(sink)
    assert folder.read_text() == "mine"


def test_a_path_below_a_file_is_one_clear_line(sink, folder):
    folder.write_text("mine")
    with pytest.raises(SinkError, match=r"cannot open .*Not a directory"):
        Drain(f"{sink}/below")


def test_a_folder_without_permission_is_one_clear_line(sink, monkeypatch):
    def refuse(_folder):
        raise PermissionError(errno.EACCES, "Permission denied", "/out")

    monkeypatch.setattr(Folder, "make", refuse)
    with pytest.raises(SinkError, match=r"cannot open .*Permission denied \(/out\).*check the permissions"):
        Drain(sink)


def test_an_empty_folder_and_one_that_a_crash_left_at_the_start_are_taken(sink, folder, rows):
    (folder / "_interlock/tmp").mkdir(parents=True)
    (folder / "_interlock/tmp/run.json.tmp").write_text("{")
    (folder / "_interlock/lock").write_text("")
    write(sink, [1])
    assert rows(sink) == {1: 1.0}
    assert list((folder / "_interlock/tmp").iterdir()) == []


def test_another_format_in_the_folder_is_refused(tmp_path):
    write(f"npy:{tmp_path / 'out'}", [1])
    with pytest.raises(SinkConflictError, match="holds npy shards; use npy:"):
        Drain(f"parquet:{tmp_path / 'out'}")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', "null"])
def test_a_damaged_run_file_is_refused(sink, folder, content):
    write(sink, [1])
    (folder / "_interlock/run.json").write_text(content)
    with pytest.raises(SinkConflictError, match=r"run.json: it is damaged"):
        Drain(sink)


def test_a_run_file_of_which_one_word_changed_is_refused(sink, folder):
    write(sink, [1], total=5)
    file = folder / "_interlock/run.json"
    file.write_text(file.read_text().replace('"total": 5', '"total": 6'))
    with pytest.raises(SinkConflictError, match="does not match its check"):
        read_status(sink)


def test_a_second_writer_is_refused_and_the_first_goes_on(sink, rows):
    with Drain(sink) as first:
        with pytest.raises(SinkConflictError, match=rf"another drain: process {os.getpid()} holds"):
            Drain(sink)
        assert read_status(sink).is_written
        first.put([1], np.ones(1))
    assert rows(sink) == {1: 1.0}
    assert not read_status(sink).is_written


def test_a_child_that_outlives_the_writer_does_not_keep_the_lock(sink):
    """A forked worker of a data loader has a copy of every descriptor."""
    done = run_python(
        """
        import os, signal, sys
        import numpy as np
        from interlock.drain import Drain

        drain = Drain(sys.argv[1])
        child = os.fork()
        if child == 0:
            signal.pause()
        drain.close()
        with Drain(sys.argv[1]) as again:
            again.put([1], np.ones(1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        """,
        sink,
    )
    assert done.returncode == 0, done.stderr
    assert read_status(sink).rows_committed == 1


def test_a_drain_in_a_forked_child_is_refused_in_place_of_hanging(sink):
    done = run_python(
        """
        import os, sys
        import numpy as np
        from interlock.drain import Drain
        from interlock.errors import LeaseError

        with Drain(sys.argv[1]) as drain:
            drain.put([1], np.ones(1))
            child = os.fork()
            if child == 0:
                try:
                    drain.put([2], np.ones(1))
                except LeaseError as error:
                    print(error, flush=True)
                sys.exit()  # runs the exit hooks, which are the parent's business
            os.waitpid(child, 0)
        """,
        sink,
    )
    assert done.returncode == 0, done.stderr
    assert "its writer thread did not survive the fork" in done.stdout
    assert read_status(sink).rows_committed == 1


# ---------------------------------------------------------------- conditions


def test_other_conditions_are_refused_with_each_key_and_both_values(sink, rows):
    before = {"model": "a.py:f", "options": {"batch": 8, "to": "jax"}, "gone": 1, "long": "x" * 200}
    write(sink, [1], fingerprint=before)
    now = {"model": "b.py:f", "options": {"batch": 8, "to": "numpy"}, "long": "y" * 200}
    with pytest.raises(SinkConflictError) as caught:
        Drain(sink, fingerprint=now)
    text = str(caught.value)
    assert 'model was "a.py:f", is now "b.py:f"' in text
    assert 'options.to was "jax", is now "numpy"' in text
    assert "gone was 1, is now not there" in text
    assert "batch" not in text
    assert "--restart" in text
    assert len(text) < 500
    assert rows(sink) == {1: 1.0}


def test_the_same_conditions_resume_whatever_the_order_of_their_keys(sink):
    write(sink, [1], fingerprint={"a": (1, 2), "b": None})
    write(sink, [2], fingerprint={"b": None, "a": [1, 2]})
    write(sink, [3])
    assert read_status(sink).fingerprint == {"a": [1, 2], "b": None}
    assert read_status(sink).rows_committed == 3


def test_rows_of_unknown_conditions_are_not_taken_for_known_ones(sink):
    write(sink, [1])
    with pytest.raises(SinkConflictError, match="conditions were not recorded"):
        Drain(sink, fingerprint={"a": 1})


def test_rows_that_were_stored_after_other_reductions_are_refused(sink):
    """They look alike, so that the schema does not tell."""
    rows = np.arange(12.0).reshape(2, 6)
    with Drain(sink, outputs={"y": Crop(slice(0, 3))}) as drain:
        drain.put([1, 2], {"y": rows})
    with pytest.raises(SinkConflictError) as caught:
        Drain(sink, outputs={"y": Crop(slice(3, 6))})
    assert "outputs.y was" in str(caught.value)
    with pytest.raises(SinkConflictError, match="is now not there"):
        Drain(sink)
    with Drain(sink, outputs={"y": [Crop(slice(0, 3))]}) as drain:
        drain.put([3, 4], {"y": rows})
    assert read_status(sink).rows_committed == 4
    with Drain(sink, outputs={"y": Crop(slice(3, 6))}, restart=True) as drain:
        drain.put([1], {"y": rows[:1]})


def test_a_sink_that_does_not_say_what_was_done_to_its_outputs_goes_on(sink, folder):
    """As one that was written before that was recorded."""
    write(sink, [1])
    file = folder / "_interlock/run.json"
    record = json.loads(file.read_text())
    del record["outputs"], record["check"]
    file.write_text(json.dumps({**record, "check": check_of(record)}))
    write(sink, [2])
    assert read_status(sink).rows_committed == 2


def test_while_nothing_is_committed_the_conditions_may_change(sink):
    write(sink, [], fingerprint={"a": 1})
    write(sink, [1], fingerprint={"a": 2})
    assert read_status(sink).fingerprint == {"a": 2}


def test_a_shard_that_a_crash_left_unrecorded_is_not_adopted_under_other_conditions(sink, folder, rows):
    write(sink, [1], fingerprint={"a": 1})
    (folder / "_interlock/manifest.jsonl").write_bytes(b"")
    with pytest.raises(SinkConflictError, match="a was 1, is now 2"):
        Drain(sink, fingerprint={"a": 2})
    write(sink, [2], fingerprint={"a": 1})
    assert rows(sink) == {1: 1.0, 2: 1.0}
    assert read_status(sink).rows_committed == 2


def test_conditions_that_are_no_json_are_refused(sink):
    with pytest.raises(ValueError, match=r"fingerprint\['f'\] cannot be stored"):
        Drain(sink, fingerprint={"f": object()})


def test_a_new_total_replaces_the_old(sink):
    write(sink, [1], total=5)
    write(sink, [2], total=7)
    write(sink, [3])
    assert read_status(sink).rows_total == 7
    assert read_status(sink).rows_missing == 4


def test_restart_discards_what_is_ours_and_nothing_else(sink, folder, rows):
    with Drain(sink, fingerprint={"a": 1}) as drain:
        drain.put([1, 2], np.zeros(2))
        drain.flush()
        drain.put([3], np.zeros(1))
        drain.fail([4], "broken")
    run = read_status(sink).run
    (folder / "_about.txt").write_text("about this data")
    with Drain(sink, fingerprint={"a": 2}, restart=True) as drain:
        assert len(drain.committed) == 0
        drain.put(["other"], {"output": np.ones(1)})
    assert rows(sink) == {"other": 1.0}
    assert (folder / "_about.txt").exists()
    status = read_status(sink)
    assert status.run != run
    assert status.rows_failed == 0
    assert verify_sink(sink).ok


# ---------------------------------------------------------------- recovery


def test_a_torn_last_line_is_cut_and_its_shard_adopted(sink, folder, rows, manifest):
    write(sink, [1, 2])
    write(sink, [3])
    file = folder / "_interlock/manifest.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert not verify_sink(sink).ok
    with Drain(sink) as drain:
        assert len(drain.committed) == 3
    assert [line["rows"] for line in manifest(folder)] == [2, 1]
    assert verify_sink(sink).ok
    assert rows(sink) == {1: 1.0, 2: 1.0, 3: 1.0}


def test_a_damaged_line_before_the_last_is_refused_and_found_by_verify(sink, folder):
    write(sink, [1])
    write(sink, [2])
    file = folder / "_interlock/manifest.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"rows":1', b'"rows":2', 1))
    with pytest.raises(SinkConflictError, match=r"manifest.jsonl is damaged: line 1 does not match"):
        Drain(sink)
    assert ("manifest.jsonl", "line 1 does not match its check") in verify_sink(sink).problems


@pytest.mark.parametrize("name", ["../evil", "_interlock", "part-0123abcd-000000.parquet/../x", "/etc/passwd"])
def test_a_manifest_cannot_lead_out_of_the_folder(sink, folder, name):
    write(sink, [1])
    file = folder / "_interlock/manifest.jsonl"
    file.write_bytes(ShardRecord(name, 1, 1, "0" * 64, "str").line() + file.read_bytes())
    with pytest.raises(SinkConflictError, match="which is no shard of this sink"):
        Drain(sink)
    assert any("is no shard of this sink" in what for _, what in verify_sink(sink).problems)


def first_shard(folder):
    return next(path for path in sorted(folder.iterdir()) if path.name.startswith("part-"))


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_missing_or_cut_shard_is_refused_with_the_command_that_looks_further(sink, folder):
    write(sink, [1])
    write(sink, [2])
    shard = first_shard(folder)
    file = next(shard.glob("output.npy")) if shard.is_dir() else shard
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(SinkConflictError, match=rf"{shard.name} has .*interlock verify"):
        Drain(sink)
    remove(shard)
    with pytest.raises(SinkConflictError, match=rf"{shard.name} is missing.*interlock verify"):
        Drain(sink)
    assert (shard.name, "it is missing") in verify_sink(sink).problems


def copy_shard(shard, target):
    shutil.copytree(shard, target) if shard.is_dir() else shutil.copy(shard, target)


def test_an_unrecorded_shard_with_committed_rows_goes_to_quarantine(sink, folder, rows):
    write(sink, [1, 2])
    shard = first_shard(folder)
    copy_shard(shard, folder / shard.name.replace("-000000", "-000007"))
    assert any("not in the manifest" in what for _, what in verify_sink(sink).problems)
    with pytest.warns(RuntimeWarning, match=r"-000007.*quarantine.*rows of it are in other shards"):
        write(sink, [3])
    assert rows(sink) == {1: 1.0, 2: 1.0, 3: 1.0}
    (kept,) = (folder / "_interlock/quarantine").iterdir()
    assert kept.name.endswith(".quarantined")
    assert verify_sink(sink).ok


def test_an_unrecorded_shard_that_is_not_whole_goes_to_quarantine(sink, folder, rows):
    write(sink, [1])
    shard = first_shard(folder)
    torn = folder / shard.name.replace("-000000", "-000001")
    if shard.is_dir():
        torn.mkdir()
        (torn / "shard.json").write_text("{")
    else:
        torn.write_bytes(shard.read_bytes()[:-9])
    with pytest.warns(RuntimeWarning, match="it cannot be read"):
        write(sink, [2])
    assert rows(sink) == {1: 1.0, 2: 1.0}


def test_a_shard_of_another_run_goes_to_quarantine(sink, folder, tmp_path, rows):
    scheme = sink.partition(":")[0]
    other = tmp_path / "other"
    write(f"{scheme}:{other}", [5])
    write(sink, [1])
    foreign = first_shard(other)
    copy_shard(foreign, folder / foreign.name)
    with pytest.warns(RuntimeWarning, match="another run wrote it"):
        write(sink, [2])
    assert rows(sink) == {1: 1.0, 2: 1.0}


def test_a_visible_file_that_is_no_shard_is_left_alone_and_named_by_verify(sink, folder):
    write(sink, [1])
    shard = first_shard(folder)
    copy_shard(shard, folder / f"extra{shard.suffix}")
    write(sink, [2])
    assert (folder / f"extra{shard.suffix}").exists()
    assert [name for name, _ in verify_sink(sink).problems] == [f"extra{shard.suffix}"]


def test_temporaries_of_a_crash_are_removed(sink, folder):
    write(sink, [1])
    (folder / "_interlock/tmp/part-00000000-000009.tmp").mkdir()
    (folder / "_interlock/tmp/part-00000000-000008.parquet.tmp").write_bytes(b"half")
    write(sink, [2])
    assert list((folder / "_interlock/tmp").iterdir()) == []


# ---------------------------------------------------------------- storage that refuses


@pytest.mark.parametrize(
    "step", ["schema", "open", "write", "close", "sync", "hash", "rename", "sync-folder", "record"]
)
def test_a_full_disk_at_any_step_loses_nothing_committed_and_is_one_clear_line(sink, rows, monkeypatch, step):
    full = {"now": step == "schema"}

    def run_step(name, action):
        if full["now"] and name == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        action()

    monkeypatch.setattr(_publish, "run_step", run_step)
    drain = Drain(sink)
    if step != "schema":
        drain.put([1, 2], np.ones(2))
        drain.flush()
    full["now"] = True
    ticket = drain.put([3], np.ones(1))
    message = r"writing to .* failed: No space left on device; free some space .* what was committed stays"
    with pytest.raises(SinkError, match=message) as caught:
        drain.flush()
    assert isinstance(caught.value.__cause__, OSError)
    for use in (ticket.wait, drain.flush, lambda: drain.put([4], np.ones(1)), drain.close, drain.close):
        with pytest.raises(SinkError, match=message):
            use()
    assert not ticket.committed
    assert not any(lane.thread.is_alive() for lane in drain._writer.lanes)
    full["now"] = False
    with Drain(sink) as again:
        left = [one for one in (1, 2, 3) if one not in again.committed]
        assert step == "schema" or {1, 2}.isdisjoint(left)
        again.put(left, np.ones(len(left)))
    assert rows(sink) == {1: 1.0, 2: 1.0, 3: 1.0}
    assert verify_sink(sink).ok


@pytest.mark.parametrize("scheme", ["parquet", "npy"])
def test_a_limit_on_file_size_is_one_clear_line_and_the_program_ends(tmp_path, scheme, rows):
    sink = f"{scheme}:{tmp_path / 'out'}"
    done = run_python(
        """
        import resource, signal, sys
        import numpy as np
        from interlock.drain import Drain
        from interlock.errors import SinkError

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with Drain(sys.argv[1], shard_bytes=100 << 20) as drain:
                drain.put([1], np.ones((1, 100_000)))
                drain.flush()
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
                for one in range(2, 60):
                    drain.put([one], np.random.rand(1, 100_000))
        except SinkError as error:
            print(error)
        """,
        sink,
    )
    assert done.returncode == 0, done.stderr
    assert "File too large; lower shard_bytes" in done.stdout
    assert done.stderr == ""
    assert rows(sink) == {1: [1.0] * 100_000}
    assert verify_sink(sink).ok


def test_a_failing_drain_does_not_hide_the_programs_own_exception(sink, monkeypatch):
    def run_step(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def program():
        with Drain(sink) as drain:
            drain.put([1], np.ones(1))
            monkeypatch.setattr(_publish, "run_step", run_step)
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        program()
    assert "Read-only file system" in "".join(caught.value.__notes__)


def test_an_encoder_that_fails_is_named(sink, monkeypatch):
    format_, _ = open_sink(sink)

    def fail(*_, run):
        raise RuntimeError(f"no such codec for {run[:0]}run")

    monkeypatch.setattr(type(format_), "open_shard", fail)
    drain = Drain(sink)
    drain.put([1], np.ones(1))
    with pytest.raises(SinkError, match="RuntimeError: no such codec for run"):
        drain.close()


# ---------------------------------------------------------------- programs that do not close


@pytest.mark.parametrize("scheme", ["parquet", "npy"])
def test_a_program_that_never_closes_exits_cleanly_and_is_told_what_it_lost(tmp_path, scheme, rows):
    sink = f"{scheme}:{tmp_path / 'out'}"
    done = run_python(
        """
        import sys
        import numpy as np
        from interlock.drain import Drain

        drain = Drain(sys.argv[1])
        drain.put([1, 2], np.ones(2))
        drain.flush()
        drain.put([3, 4, 5], np.ones(3)).wait("written")
        """,
        sink,
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: a drain was not closed: 3 rows that were put are not committed" in done.stderr
    assert rows(sink) == {1: 1.0, 2: 1.0}


def test_a_drain_that_is_dropped_frees_its_folder(sink):
    drain = Drain(sink)
    (lane,) = drain._writer.lanes
    with pytest.warns(ResourceWarning, match="was not closed: 0 rows"):
        del drain
    lane.thread.join(20)
    write(sink, [1])


def test_live_jax_arrays_at_exit_do_no_harm(tmp_path):
    pytest.importorskip("jax")
    done = run_python(
        """
        import sys
        import jax.numpy as jnp, numpy as np
        from interlock.drain import Drain

        drain = Drain(sys.argv[1])
        for at in range(4):
            drain.put([at], jnp.ones((1, 100_000)) @ jnp.ones((100_000, 10)))
        """,
        f"npy:{tmp_path / 'out'}",
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_drain_loads_no_framework_and_no_format():
    code = "import sys, interlock.drain; print([m for m in ('torch', 'jax', 'pyarrow', 'PIL') if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["../secret.npy", "/secret.npy", ".secret.npy"])
def test_a_shard_of_npy_files_cannot_lead_out_of_its_folder(tmp_path, name):
    """Also where rows that came before are looked up, whose ids the manifest knows."""
    write(f"npy:{tmp_path / 'out'}", [0, 1])
    shard = first_shard(tmp_path / "out")
    np.save(shard.parent / "secret.npy", np.arange(2.0))
    index = json.loads((shard / "shard.json").read_text())
    index["files"][name] = 144
    (shard / "shard.json").write_text(json.dumps(index))
    format_of_it, _ = open_sink(f"npy:{tmp_path / 'out'}")
    with pytest.raises(UsageError, match="cannot be a file name"):
        format_of_it.read_rows(shard, [0])
    with pytest.raises(UsageError, match="cannot be a file name"):
        format_of_it.read_shard(shard)
