"""Several ranks write into one folder: real processes under torchrun, killed and resumed with other numbers of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress

import numpy as np
import pytest

from interlock.drain import (
    Drain,
    discard_sink,
    merge_sink,
    read_committed,
    read_status,
    resume_plan,
    settle_sink,
    verify_sink,
)
from interlock.errors import SinkConflictError, UsageError
from interlock.frameworks import process_rank

ROWS = 60

PROGRAM = textwrap.dedent(
    """
    import os, sys, time
    import numpy as np, torch
    import torch.distributed as distributed
    from interlock.drain import Drain

    sink, padded, told = sys.argv[1], sys.argv[2] == "padded", sys.argv[3]
    open(f"{told}-{os.getpid()}", "w").close()
    distributed.init_process_group("gloo")
    with Drain(sink, total=60, fingerprint={"model": "m"}, shard_bytes=120) as drain:
        assert (drain.rank, drain.world) == (distributed.get_rank(), distributed.get_world_size())
        if padded:
            dataset = torch.arange(60)
            sampler = torch.utils.data.DistributedSampler(dataset, shuffle=False)
            ids = [one for one in sampler if one not in drain.committed]
        else:
            ids = list(drain.todo(range(60)))
        for start in range(0, len(ids), 3):
            some = np.array(ids[start : start + 3])
            drain.put(some, {"output": some * 1.5, "vector": np.repeat(some[:, None], 3, 1)})
            if start % 6 == 0:
                drain.flush()
                with open(f"{told}-{os.getpid()}", "a") as file:
                    file.write("".join(f"{one}\\n" for one in some))
            time.sleep(0.01)
    distributed.destroy_process_group()
    """
)


def torchrun(program, world, *arguments):
    """Start ranks under torchrun, in a process group of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.Popen(
        [*command, str(program), *map(str, arguments)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def finish(child):
    said, _ = child.communicate(timeout=100)
    assert child.returncode == 0, said


def kill(child, folder, lines):
    """Kill a group of ranks with SIGKILL once they have said that `lines` rows are committed; return those rows."""
    for _ in range(1000):
        told = {int(one) for file in folder.glob("told-*") for one in file.read_text().splitlines()}
        if len(told) >= lines or child.poll() is not None:
            break
        try:
            child.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    os.killpg(child.pid, signal.SIGKILL)
    for file in folder.glob("told-*"):  # torchrun starts its ranks in sessions of their own
        with suppress(ProcessLookupError):
            os.kill(int(file.name.partition("-")[2]), signal.SIGKILL)
    child.communicate(timeout=60)
    return {int(one) for file in folder.glob("told-*") for one in file.read_text().splitlines()}


@pytest.fixture
def program(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def check_complete(sink, rows, columns):
    assert rows(sink) == {one: 1.5 * one for one in range(ROWS)}
    everything = columns(sink)
    assert (everything["vector"] == everything["id"][:, None]).all()
    report = verify_sink(sink)
    assert report.ok, report
    assert report.missing == 0


@pytest.mark.parametrize(("scheme", "worlds", "way"), [("npy", (2, 3), "todo"), ("parquet", (3, 2), "padded")])
def test_ranks_that_were_killed_are_finished_by_another_number_of_them(
    tmp_path, program, rows, columns, scheme, worlds, way
):
    sink = f"{scheme}:{tmp_path / 'out'}"
    arguments = (sink, way, tmp_path / "told")
    chance = random.Random(f"{scheme}/{worlds}/{way}")  # noqa: S311 - an instant, not a secret
    promised = kill(torchrun(program, worlds[0], *arguments), tmp_path, chance.randrange(3, 30))
    assert 0 < len(promised) < ROWS
    assert promised <= set(read_committed(sink).ids.contains_many(np.arange(ROWS)).nonzero()[0].tolist())

    finish(torchrun(program, worlds[1], *arguments))

    check_complete(sink, rows, columns)
    assert len(read_status(sink).ranks) == 3
    assert merge_sink(sink).rows == ROWS
    assert len(read_status(sink).ranks) == 1
    check_complete(sink, rows, columns)


# ---------------------------------------------------------------- in one process


def put(drain, ids, scale=1.5):
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * float(scale)})


def test_each_rank_has_files_of_its_own(sink, folder):
    with Drain(sink, rank=(0, 2)) as first, Drain(sink, rank=(1, 2)) as second:
        put(first, [0, 2])
        put(second, [1, 3])
    names = {path.name for path in (folder / "_interlock").iterdir()}
    assert {"manifest.jsonl", "manifest-r00001.jsonl", "lock", "lock-r00001", "tmp-r00001"} <= names
    shards = sorted(path.name for path in folder.iterdir() if path.name.startswith("part-"))
    assert ["-r00001-" in name for name in shards] == [False, True]
    status = read_status(sink)
    assert [(one.rank, one.rows, one.shards, one.is_written) for one in status.ranks] == [
        (0, 2, 1, False),
        (1, 2, 1, False),
    ]


def test_a_rank_is_refused_twice_and_told_how_ranks_are_named(sink):
    with Drain(sink, rank=(1, 2)), pytest.raises(SinkConflictError, match=r"lock-r00001.*have a rank each"):
        Drain(sink, rank=(1, 2))


@pytest.mark.parametrize("rank", [(2, 2), (-1, 2), (0, 0)])
def test_there_is_no_such_rank(sink, rank):
    with pytest.raises(UsageError, match="there is no rank"):
        Drain(sink, rank=rank)


def test_without_a_framework_a_process_is_the_only_rank(sink):
    assert process_rank() == (0, 1)
    with Drain(sink) as drain:
        assert (drain.rank, drain.world) == (0, 1)


def test_whose_a_row_is_does_not_depend_on_what_is_committed(sink):
    """So ranks that open one after the other, and see other rows committed, leave none out."""
    with Drain(sink, rank=(0, 2)) as first:
        put(first, list(first.todo(range(11))))
    with Drain(sink, rank=(1, 2)) as second:
        assert list(second.todo(range(11))) == [1, 3, 5, 7, 9]
        assert second.pending(np.arange(11)).index.tolist() == [1, 3, 5, 7, 9]
        assert list(second.pending(iter([(1, "a"), (2, "b"), (3, "c")]))) == [(1, "a"), (3, "c")]
        put(second, list(second.todo(range(11))))
    with Drain(sink, rank=(0, 3)) as other:
        assert sorted(one for rank in range(3) for one in other.todo(range(13), rank=rank)) == [11, 12]


def test_rows_that_two_ranks_wrote_are_there_once_when_the_last_has_closed(sink, rows):
    first, second = Drain(sink, rank=(0, 2)), Drain(sink, rank=(1, 2))
    put(first, [0, 1, 2])
    put(second, [3, 4, 0])
    first.close()
    second.close()
    assert rows(sink) == {one: 1.5 * one for one in range(5)}
    assert verify_sink(sink).ok


def test_the_row_of_the_lowest_rank_stays_whoever_closes_last(sink, rows):
    first, second = Drain(sink, rank=(0, 2), repeats="first"), Drain(sink, rank=(1, 2), repeats="first")
    put(second, [3, 0], scale=-1)
    put(first, [0, 1])
    second.close()
    first.close()
    assert rows(sink) == {0: 0.0, 1: 1.5, 3: -3.0}
    assert verify_sink(sink).ok


def test_a_shard_of_which_every_row_is_elsewhere_goes(sink, folder, rows):
    first, second = Drain(sink, rank=(0, 2)), Drain(sink, rank=(1, 2))
    put(first, [0, 1])
    put(second, [1, 0])
    first.close()
    second.close()
    assert rows(sink) == {0: 0.0, 1: 1.5}
    assert not [path for path in folder.iterdir() if "-r00001-" in path.name]
    assert read_status(sink).rows_committed == 2
    with Drain(sink, rank=(1, 2)) as again:
        assert len(again.committed) == 2


def test_other_bytes_on_another_rank_are_an_error_that_names_both_places(sink, rows):
    first, second = Drain(sink, rank=(0, 2)), Drain(sink, rank=(1, 2))
    put(first, [7, 8, 9])
    put(second, [5, 8], scale=2)
    first.close()
    with pytest.raises(
        SinkConflictError,
        match=r"id 8 has two values of output 'output'.*row 1 of part-.*-r00001-000000.* is not row 1 of",
    ):
        second.close()
    assert not verify_sink(sink).ok
    with pytest.raises(SinkConflictError, match="--keep-first"):
        merge_sink(sink)
    report = merge_sink(sink, repeats="first")
    assert (report.rows, report.rows_removed, report.ranks) == (4, 1, 2)
    assert rows(sink) == {5: 10.0, 7: 10.5, 8: 12.0, 9: 13.5}
    assert verify_sink(sink).ok


def test_a_live_rank_keeps_its_rows_until_it_closes(sink):
    first, second = Drain(sink, rank=(0, 2)), Drain(sink, rank=(1, 2))
    put(first, [0])
    first.flush()
    put(second, [0])
    second.flush()
    assert settle_sink(sink) == 0
    with pytest.raises(SinkConflictError, match="is being written: rank 0 lives"):
        merge_sink(sink)
    first.close()
    second.close()
    assert read_status(sink).rows_committed == 1


def test_rows_that_are_committed_when_a_rank_opens_are_dropped_at_put(sink, rows):
    with Drain(sink, rank=(0, 2)) as first:
        put(first, [0, 1])
    with Drain(sink, rank=(1, 2)) as second:
        put(second, [1, 2])
        with pytest.raises(UsageError, match="put twice with different values"):
            put(second, [1], scale=9)
        assert second.statistics().rows_duplicate == 1
    assert rows(sink) == {0: 0.0, 1: 1.5, 2: 3.0}


def test_ranks_that_make_other_rows_are_refused(sink):
    first = Drain(sink, rank=(0, 2))
    second = Drain(sink, rank=(1, 2))
    put(first, [0])
    first.flush()
    second.put([1], {"output": np.zeros(1, np.float32)})
    with pytest.raises(SinkConflictError, match=r"rank 1 makes other rows.*float32.*float64"):
        second.flush()
    with pytest.raises(SinkConflictError, match="rank 1 makes other rows"):
        second.close()
    first.close()
    assert verify_sink(sink).ok


def test_other_conditions_on_another_rank_are_refused(sink):
    with Drain(sink, rank=(0, 2), fingerprint={"a": 1}), pytest.raises(SinkConflictError, match="a was 1, is now 2"):
        Drain(sink, rank=(1, 2), fingerprint={"a": 2})


def test_several_ranks_do_not_restart_but_a_sink_can_be_discarded_before(sink, rows):
    with Drain(sink, rank=(0, 2)) as first, Drain(sink, rank=(1, 2)) as second:
        put(first, [0])
        put(second, [1])
    with Drain(sink, rank=(1, 2)), pytest.raises(SinkConflictError, match="another rank writes"):
        discard_sink(sink)
    with pytest.raises(UsageError, match="discard_sink"):
        Drain(sink, rank=(0, 2), restart=True)
    discard_sink(sink)
    assert rows(sink) == {}
    with Drain(sink, rank=(1, 2)) as drain:
        assert len(drain.committed) == 0


def test_a_row_that_failed_on_one_rank_is_done_when_another_commits_it(sink):
    with Drain(sink, rank=(1, 2)) as drain:
        drain.fail([5, 6], "broken")
    with Drain(sink, rank=(0, 2)) as drain:
        drain.fail([6], "broken again")
        put(drain, [5])
    (failure,) = read_status(sink).failures
    assert failure.as_dict() == {"id": 6, "reason": "broken again", "attempts": 2}
    merge_sink(sink)
    assert [one.id for one in read_status(sink).failures] == [6]


def test_a_shard_that_a_dead_rank_did_not_record_is_taken_up_by_whoever_opens(sink, folder, rows):
    with Drain(sink, rank=(0, 3)) as first, Drain(sink, rank=(2, 3)) as third:
        put(first, [0])
        put(third, [2])
    (folder / "_interlock/manifest-r00002.jsonl").write_bytes(b'{"half')
    (folder / "_interlock/tmp-r00002/part-00000000-r00002-000009.tmp").write_bytes(b"half")
    with Drain(sink, rank=(1, 2)) as second:
        assert 2 in second.committed
        put(second, [1])
    assert not list((folder / "_interlock/tmp-r00002").iterdir())
    assert rows(sink) == {0: 0.0, 1: 1.5, 2: 3.0}
    assert verify_sink(sink).ok


def test_a_plan_says_what_each_rank_will_be_given(sink):
    with Drain(sink, rank=(0, 2), total=20) as drain:
        put(drain, range(5))
    plans = resume_plan(sink, 3)
    with Drain(sink, rank=(0, 3)) as drain:
        for plan in plans:
            assert list(plan.todo) == list(drain.todo(range(20), rank=plan.rank))
    assert sum(len(plan.todo) for plan in plans) == 15


def test_a_plan_needs_rows_that_have_numbers(sink):
    with Drain(sink) as drain:
        drain.put(["a"], np.ones(1))
    with pytest.raises(UsageError, match="does not say how many rows"):
        resume_plan(sink, 2)
    with pytest.raises(UsageError, match="are strings"):
        resume_plan(sink, 2, total=5)


def test_strings_that_two_ranks_wrote_are_there_once(sink, rows):
    first, second = Drain(sink, rank=(0, 2)), Drain(sink, rank=(1, 2))
    first.put(["a", "b"], {"output": np.array([1.0, 2.0])})
    second.put(["c", "b"], {"output": np.array([3.0, 2.0])})
    first.close()
    second.close()
    assert rows(sink) == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert verify_sink(sink).ok


FEW_DESCRIPTORS = """
import resource, sys
import numpy as np
from interlock.drain import Drain, merge_sink
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with Drain(sys.argv[1], rank=(0, 100)) as drain:
    drain.put([0], np.zeros(1))
print(len(drain.committed), merge_sink(sys.argv[1]).rows)
"""


def test_more_ranks_may_have_died_than_a_process_may_have_files_open(tmp_path):
    sink = f"npy:{tmp_path / 'out'}"
    for rank in (1, 34, 67):
        with Drain(sink, rank=(rank, 100)) as drain:
            drain.put([rank], np.full(1, float(rank)))
    for rank in range(1, 100):
        (tmp_path / f"out/_interlock/lock-r{rank:05d}").touch()
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS, sink], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["4", "4"]), done.stderr
    assert verify_sink(sink).ok


def test_who_asks_which_ranks_are_dead_leaves_a_living_one_alone(sink):
    with Drain(sink, rank=(1, 3)) as living:
        living.put([1], np.ones(1))
        for _ in range(2):
            with Drain(sink, rank=(2, 3)) as other:
                other.put([2], np.ones(1))
            assert read_status(sink).ranks[1].is_written
            with pytest.raises(SinkConflictError, match="being written"):
                merge_sink(sink)
    assert verify_sink(sink).rows == 2
