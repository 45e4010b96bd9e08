"""`interlock merge`, `compact` and `resume-plan`: what they print, and which exit code they have."""

from __future__ import annotations

import numpy as np
import pytest

from interlock.drain import Drain, decode_ids, read_status, verify_sink


@pytest.fixture
def ranks(bench):
    """A sink that two ranks wrote, with one row on both and six left."""
    first, second = (Drain(bench.sink, rank=(rank, 2), total=12) for rank in range(2))
    first.put([0, 2, 4], np.arange(3.0))
    second.put([1, 3, 5, 0], np.array([0.5, 1.5, 2.5, 0.0]))
    first.close()
    second.close()
    return bench


def test_status_tells_of_each_rank(ranks):
    said = ranks.call("status", ranks.sink)
    assert "rank 0  3 rows in 1 shards\nrank 1  3 rows in 1 shards\n" in said.out
    assert [one["rank"] for one in ranks.call("status", ranks.sink, "--json").json["ranks"]] == [0, 1]


def test_merge_makes_one_dataset(ranks):
    said = ranks.call("merge", ranks.sink)
    assert said.code == 0
    assert said.out == "rows    6, 0 repeats removed\nshards  2, from 2 ranks\n"
    again = ranks.call("merge", ranks.sink, "--json")
    assert again.json == {
        "sink": ranks.sink, "rows": 6, "shards": 2, "ranks": 1, "rows_removed": 0, "shards_replaced": 0,
    }  # fmt: skip
    assert sorted(ranks.read()) == [0, 1, 2, 3, 4, 5]


def test_compact_makes_big_shards_of_small_ones(ranks):
    said = ranks.call("compact", ranks.sink)
    assert said.code == 0
    assert said.out.splitlines()[1:] == ["shards  1, from 2 ranks", "        2 small ones went into them"]
    assert ranks.call("verify", ranks.sink).code == 0
    assert sorted(ranks.read()) == [0, 1, 2, 3, 4, 5]


def test_two_values_for_one_id_are_told_with_the_way_out(bench):
    first, second = (Drain(bench.sink, rank=(rank, 2), repeats="first") for rank in range(2))
    first.put([0, 7], np.array([1.0, 2.0]))
    second.put([7], np.array([3.0]))
    first.flush()
    second._repeats = "same"
    first.close()
    with pytest.raises(ValueError, match="id 7 has two values"):
        second.close()
    said = bench.call("merge", bench.sink)
    assert said.code == 2
    assert "error: id 7 has two values of output 'output'" in said.err
    assert f"hint: keep the first of each with: interlock merge {bench.sink} --keep-first" in said.err
    assert bench.call("compact", bench.sink, "--keep-first").code == 0
    assert bench.read() == {0: {"output": 1.0}, 7: {"output": 2.0}}
    assert verify_sink(bench.sink).ok


def test_a_plan_says_what_each_rank_has_to_do(ranks):
    said = ranks.call("resume-plan", ranks.sink, "--world", 2)
    assert said.code == 0
    assert said.out == "left    6 rows\nrank 0  3 rows, ids 6 to 10\nrank 1  3 rows, ids 7 to 11\n"
    plan = ranks.call("resume-plan", ranks.sink, "--world", 4, "--total", 9, "--json", "--ids").json
    assert [one["rows"] for one in plan["ranks"]] == [1, 0, 1, 1]
    codes = [(one["ids"], one["rows"]) for one in plan["ranks"]]
    assert [code and np.asarray(decode_ids(code, rows)).tolist() for code, rows in codes] == [[8], None, [6], [7]]
    assert "ids" not in ranks.call("resume-plan", ranks.sink, "--json").json["ranks"][0]


@pytest.mark.parametrize("command", ["merge", "compact", "resume-plan"])
def test_where_nothing_was_written_is_one_clear_line(bench, command):
    said = bench.call(command, bench.sink)
    assert said.code == 2
    assert "there is nothing at" in said.err
    assert not (bench.folder / "out").exists()


@pytest.mark.parametrize("command", ["merge", "compact"])
def test_a_sink_that_is_being_written_is_left_alone(bench, command):
    with Drain(bench.sink, rank=(3, 4)) as drain:
        drain.put([1], np.ones(1))
        said = bench.call(command, bench.sink)
        assert said.code == 2
        assert "is being written: rank 3 lives" in said.err
    assert read_status(bench.sink).rows_committed == 1


def test_a_plan_needs_a_total(bench):
    with Drain(bench.sink) as drain:
        drain.put([1], np.ones(1))
    said = bench.call("resume-plan", bench.sink)
    assert said.code == 2
    assert "hint: give --total" in said.err


def test_predict_does_the_share_of_its_rank(bench, monkeypatch):
    model = bench.file("def twice(batch):\n    return batch * 2\n") + ":twice"
    said = bench.predict(model, "--rank", "0/3")
    assert said.code == 0
    assert "note: rank 0 of 3" in said.err
    assert sorted(bench.read()) == [0, 3, 6, 9]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():  # as torchrun does
        monkeypatch.setenv(name, value)
    assert bench.predict(model).code == 0
    assert sorted(bench.read()) == [0, 1, 3, 5, 6, 7, 9]
    assert bench.predict(model, "--rank", "0/1").code == 0
    assert {one: row["output"] for one, row in bench.read().items()} == dict(enumerate((bench.rows * 2).tolist()))
    assert bench.call("merge", bench.sink, "--json").json["rows"] == 10


@pytest.mark.parametrize("rank", ["3", "2/2", "a/b", "0/0", "-1/2"])
def test_a_rank_that_cannot_be_is_refused(bench, rank):
    said = bench.predict("m.py:f", "--rank", rank)
    assert said.code == 2
    assert "no rank of several" in said.err
