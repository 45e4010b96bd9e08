"""`delta:`: what readers of the table see at every step, and what becomes of tables that others write to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import create_table_with_add_actions

from interlock.drain import Cast, Drain, compact_sink, merge_sink, read_committed, settle_sink, verify_sink
from interlock.drain import _publish as publish_module
from interlock.drain import _rewrite as rewrite_module
from interlock.drain._sinks import _delta
from interlock.errors import SinkConflictError, SinkError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink(folder) -> str:
    return f"delta:{folder}"


def put(drain, ids) -> None:
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * 1.5, "vector": np.repeat(ids[:, None], 3, 1).astype(np.float32)})


def ids_of(folder: Path) -> list[Any]:
    """Return the ids that a reader finds who comes now, each as often as it is there."""
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    return sorted(DeltaTable(str(folder)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


# ---------------------------------------------------------------- what readers see


def test_before_every_step_a_reader_finds_each_committed_row_once(sink, folder, monkeypatch):
    seen = []

    def run_step(name, action):
        found = ids_of(folder)
        assert len(found) == len(set(found))
        committed = read_committed(sink)
        assert set(found) >= {one for one in range(20) if one in committed}, name
        seen.append(name)
        action()

    monkeypatch.setattr(publish_module, "run_step", run_step)
    with Drain(sink, shard_bytes=120) as drain:
        for start in range(0, 20, 5):
            put(drain, range(start, start + 5))
    assert set(seen) == set(publish_module.STEPS)
    assert ids_of(folder) == list(range(20))


def test_before_every_step_of_a_compaction_a_reader_finds_all_rows_once_and_one_that_came_before_reads_on(
    sink, folder, monkeypatch
):
    with Drain(sink, shard_bytes=120) as drain:
        put(drain, range(20))
    before = DeltaTable(str(folder))
    seen = []

    def run_step(name, action):
        assert ids_of(folder) == list(range(20)), name
        seen.append(name)
        action()

    monkeypatch.setattr(rewrite_module, "run_step", run_step)
    assert compact_sink(sink).shards == 1
    assert set(seen) == set(rewrite_module.STEPS) - {"hide"}
    assert ids_of(folder) == list(range(20))
    assert sorted(before.to_pyarrow_table()["id"].to_pylist()) == list(range(20))
    assert verify_sink(sink).ok


def test_what_was_compacted_away_goes_with_a_vacuum_and_nothing_else_does(sink, folder):
    with Drain(sink, shard_bytes=120) as drain:
        put(drain, range(20))
    small = len(list(folder.glob("*.parquet")))
    compact_sink(sink)
    merge_sink(sink)  # the manifest is written anew, and still knows which files count no more
    assert len(list(folder.glob("*.parquet"))) == small + 1
    with Drain(sink) as drain:
        assert len(drain.committed) == 20
    control = set((folder / "_interlock").rglob("*"))
    removed = DeltaTable(str(folder)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(removed) == small
    assert set((folder / "_interlock").rglob("*")) == control
    assert verify_sink(sink).ok
    with Drain(sink) as drain:
        put(drain, [20])
    assert ids_of(folder) == list(range(21))


def test_the_table_knows_counts_and_bounds_so_that_readers_skip_files(sink, folder):
    with Drain(sink) as drain:
        for start in (0, 100):
            put(drain, range(start, start + 5))
            drain.flush()
    actions = pa.table(DeltaTable(str(folder)).get_add_actions(flatten=True))
    stats = zip(*(actions[name].to_pylist() for name in ("num_records", "min.id", "max.id")), strict=True)
    assert sorted(stats) == [(5, 0, 4), (5, 100, 104)]
    found = DeltaTable(str(folder)).to_pyarrow_table(filters=[("id", "=", 103)])
    assert found["vector"].to_pylist() == [[103.0, 103.0, 103.0]]


def test_strings_as_ids_come_back(sink, folder):
    with Drain(sink) as drain:
        drain.put(["b/1", "a/2"], {"x": np.ones((2, 2, 2))})
    assert ids_of(folder) == ["a/2", "b/1"]
    assert verify_sink(sink).ok


def test_the_log_is_on_the_storage_before_the_manifest_says_so(sink, folder, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(_delta, "sync", lambda path: synced.append(path.relative_to(folder).as_posix()))

    def run_step(name, action):
        if name == "record":
            newest = max(path.name for path in (folder / "_delta_log").glob("*.json"))
            assert synced.index(f"_delta_log/{newest}") < len(synced) - 1 - synced[::-1].index("_delta_log")
        action()

    monkeypatch.setattr(publish_module, "run_step", run_step)
    with Drain(sink) as drain:
        for start in (0, 5):
            put(drain, range(start, start + 5))
            drain.flush()
    assert "." in synced  # the folder in which the log is


# ---------------------------------------------------------------- several writers


def test_ranks_commit_at_the_same_time_and_each_row_is_there_once(sink, folder):
    ranks = [Drain(sink, rank=(rank, 4), shard_bytes=60) for rank in range(4)]
    start = threading.Barrier(4)

    def write(rank: int) -> None:
        start.wait()
        for at in range(rank, 48, 4):
            put(ranks[rank], [at])
        ranks[rank].close()

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids_of(folder) == list(range(48))
    assert verify_sink(sink).ok
    versions = (folder / "_delta_log").glob("*.json")
    assert sum("metaData" in version.read_text() for version in versions) == 1, "two ranks made the table"


def test_rows_that_two_ranks_wrote_are_there_once_when_the_last_has_closed(sink, folder):
    with Drain(sink, rank=(0, 2)) as first, Drain(sink, rank=(1, 2)) as second:
        put(first, [0, 1, 2])
        put(second, [2, 3])
    assert ids_of(folder) == [0, 1, 2, 3]
    with Drain(sink, rank=(0, 2)) as first, Drain(sink, rank=(1, 2)) as second:
        put(first, [4])
        put(second, [4])
    assert ids_of(folder) == [0, 1, 2, 3, 4]
    assert (settle_sink(sink), verify_sink(sink).ok) == (0, True)


def test_a_table_that_another_rank_makes_just_now_is_taken(sink, folder, monkeypatch):
    others = [Drain(sink, rank=(1, 2))]

    def late(*given: Any, **options: Any) -> None:
        if others:
            other = others.pop()
            put(other, [1])
            other.close()
        create_table_with_add_actions(*given, **options)

    monkeypatch.setattr(_delta, "create_table_with_add_actions", late)
    with Drain(sink, rank=(0, 2)) as drain:
        put(drain, [0])
    assert ids_of(folder) == [0, 1]


# ---------------------------------------------------------------- failures


def test_a_commit_that_fails_ends_the_drain_and_the_next_run_does_it(sink, folder, monkeypatch):
    with Drain(sink) as drain:
        put(drain, [0])

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitFailedError("Failed to commit transaction: 100")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", refuse)
        drain = Drain(sink)
        put(drain, [1])
        with pytest.raises(SinkError, match=r"cannot commit to the Delta table in .*CommitFailedError.*run again"):
            drain.close()
    assert (ids_of(folder), 1 in read_committed(sink)) == ([0], False)
    with Drain(sink) as drain:
        assert list(drain.todo(range(2))) == []
    assert ids_of(folder) == [0, 1]


def test_a_shard_that_nobody_vouches_for_is_in_the_table_no_more(sink, folder):
    with Drain(sink) as drain:
        put(drain, [0])
        drain.flush()
        put(drain, [1])
    manifest = folder / "_interlock/manifest.jsonl"
    manifest.write_bytes(
        manifest.read_bytes().splitlines(keepends=True)[0]
    )  # as if the process had died before it wrote the second line
    shard = sorted(folder.glob("*.parquet"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="moved to"):
        drain = Drain(sink)
    with drain:
        assert ids_of(folder) == [0]
        put(drain, [1])
    assert ids_of(folder) == [0, 1]


# ---------------------------------------------------------------- tables of others


def test_somebody_else_s_table_is_refused_and_not_touched(sink, folder):
    write_deltalake(str(folder), pa.table({"id": [1, 2]}))
    before = sorted(folder.rglob("*"))
    for restart in (False, True):
        with pytest.raises(SinkConflictError, match="was written by something else"):
            Drain(sink, restart=restart)
    assert sorted(folder.rglob("*")) == before


def test_a_table_to_which_something_else_has_appended_is_refused_and_verify_says_so(sink, folder):
    with Drain(sink) as drain:
        put(drain, [0])
    schema = DeltaTable(str(folder)).to_pyarrow_table().schema
    write_deltalake(
        str(folder), pa.table({"id": [0], "output": [0.0], "vector": [[1.0]]}, schema=schema), mode="append"
    )
    for restart in (False, True):
        with pytest.raises(SinkConflictError, match=r"lists part-0.*something else has written to it"):
            Drain(sink, restart=restart)
    assert ids_of(folder) == [0, 0]
    report = verify_sink(sink)
    assert not report.ok
    assert any("in the catalogue and not in the manifest" in what for _, what in report.problems)


@pytest.mark.parametrize("what", ["optimize", "delete"])
def test_rows_that_something_else_moved_or_deleted_are_not_put_back(sink, folder, what):
    with Drain(sink) as drain:
        for one in range(3):
            put(drain, [one])
            drain.flush()
    table = DeltaTable(str(folder))
    found = table.optimize.compact() if what == "optimize" else table.delete("id = 0")
    assert found
    with pytest.raises(SinkConflictError, match=r"something else has (written to it|taken it out)"):
        Drain(sink)
    assert ids_of(folder) == ([0, 1, 2] if what == "optimize" else [1, 2])
    assert not verify_sink(sink).ok


def test_restart_makes_a_new_table_and_leaves_what_others_put_there(sink, folder):
    with Drain(sink, shard_bytes=60) as drain:
        put(drain, range(5))
    compact_sink(sink)
    (folder / "notes.txt").write_text("mine")
    with Drain(sink, restart=True) as drain:
        assert not DeltaTable.is_deltatable(str(folder))
        drain.put([7], {"other": np.ones((1, 2), np.int16)})
    assert DeltaTable(str(folder)).to_pyarrow_table().to_pydict() == {"id": [7], "other": [[1, 1]]}
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(list(folder.glob("*.parquet"))) == 1


def test_a_restart_that_was_cut_leaves_a_table_of_all_rows_to_the_next_run(sink, folder, monkeypatch):
    with Drain(sink, shard_bytes=60) as drain:
        put(drain, range(5))

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("interlock.drain._store._wipe", cut)
        with pytest.raises(KeyboardInterrupt):
            Drain(sink, restart=True)
    assert ids_of(folder) == []
    Drain(sink).close()
    assert ids_of(folder) == list(range(5))
    assert verify_sink(sink).ok


# ---------------------------------------------------------------- what it cannot hold


@pytest.mark.parametrize(
    ("dtype", "wider"),
    [("uint8", "int16"), ("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64"), ("float16", "float32")],
)
def test_a_type_that_delta_lacks_is_refused_with_the_cast_that_helps(sink, folder, dtype, wider):
    values = np.arange(4).astype(dtype).reshape(2, 2)
    with (
        Drain(sink) as drain,
        pytest.raises(UsageError, match=rf"delta: stores bool, .*outputs={{'x': interlock.drain.Cast\('{wider}'\)}}"),
    ):
        drain.put([1, 2], {"x": values})
    with Drain(sink, outputs={"x": Cast(wider)}) as drain:
        drain.put([1, 2], {"x": values})
    assert DeltaTable(str(folder)).to_pyarrow_table()["x"].to_pylist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a{", "a)", "a\nb", "a\tb", "a=b", "ID"])
def test_a_name_that_no_delta_table_can_have_is_refused_before_anything_is_written(sink, folder, name):
    with Drain(sink) as drain:
        with pytest.raises(UsageError, match="rename it"):
            drain.put([1], {name: np.ones(1)})
        drain.put([1], {"a.b": np.ones(1)})
    assert ids_of(folder) == [1]


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_folder_that_deltalake_would_mistake_for_another_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=r"a Delta table cannot be in .*use another folder"):
        Drain(f"delta:{tmp_path / name}")


def test_a_table_is_in_a_folder_of_this_machine():
    with pytest.raises(UsageError, match=r"cannot use delta:memory://.*: delta: needs a folder of this machine"):
        Drain("delta:memory://bucket/out")
