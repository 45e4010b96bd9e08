"""`interlock predict`, `status` and `verify` with every sink that keeps rows."""

from __future__ import annotations

import pytest

SCHEMES = ["parquet", "arrow", "npy", "safetensors", "zarr", "webdataset", "delta"]

MODEL = """
def double(batch):
    return {"y": batch * 2, "pair": (batch.sum(axis=1), batch > 3)}
"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_are_predicted_in_two_runs_and_status_and_verify_agree(bench, scheme):
    sink = f"{scheme}:{bench.folder / 'out'}"
    model = f"{bench.file(MODEL)}:double"
    first = bench.predict(model, "--limit", 4, "--batch-size", 3, sink=sink)
    assert (first.code, first.json["rows_committed"]) == (0, 4)
    second = bench.predict(model, "--batch-size", 3, sink=sink)
    assert (second.code, second.json["rows_resumed"], second.json["rows_committed"]) == (0, 4, 10)
    status = bench.call("status", sink, "--json")
    assert (status.code, status.json["rows_committed"], status.json["rows_missing"]) == (0, 10, 0)
    verified = bench.call("verify", sink, "--json")
    assert (verified.code, verified.json["ok"], verified.json["rows"]) == (0, True, 10)


def test_an_unknown_sink_is_told_which_there_are(bench):
    said = bench.predict(f"{bench.file(MODEL)}:double", sink=f"hdf5:{bench.folder / 'out'}")
    assert said.code == 2
    assert all(f"{scheme}:PATH" in said.err for scheme in SCHEMES), said.err


def test_help_names_every_sink(bench):
    said = bench.call("predict", "--help")
    assert all(f"{scheme}:" in said.out for scheme in SCHEMES)
