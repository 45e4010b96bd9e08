"""`interlock predict` on shards and Arrow files: what SOURCE may say, and that ids come through."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pyarrow as pa

DOUBLE = "def double(batch): return batch * 2"


def write_shards(folder):
    for shard in range(2):
        with tarfile.open(folder / f"s-{shard}.tar", "w") as tar:
            for number in range(3):
                for extension, data in (("cls", b"%d" % (10 * shard + number)), ("id", b"9")):
                    info = tarfile.TarInfo(f"{number}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def test_shards_are_predicted_with_their_keys_as_ids(bench):
    write_shards(bench.folder)
    source = f"wds:{bench.folder}/s-{{0..1}}.tar"
    model = f"{bench.file(DOUBLE)}:double"
    said = bench.predict(model, "--batch-size", 4, "--columns", "cls", source=source)
    assert said.code == 0, said.err
    found = {name: next(iter(row.values())) for name, row in bench.read().items()}
    assert found == {f"s-{shard}.tar/{number}": 2 * (10 * shard + number) for shard in range(2) for number in range(3)}
    again = bench.predict(model, "--batch-size", 4, "--columns", "cls", source=source)
    assert (again.code, again.json["rows_resumed"]) == (0, 6)


def test_an_arrow_file_of_any_suffix_is_predicted(bench):
    table = pa.table({"x": np.arange(5.0), "name": list("abcde")})
    with pa.ipc.new_file(bench.folder / "cache", table.schema) as writer:
        writer.write_table(table)
    said = bench.predict(
        f"{bench.file(DOUBLE)}:double", "--id-column", "name", source=f"arrow:{bench.folder / 'cache'}"
    )
    assert said.code == 0, said.err
    assert {name: next(iter(row.values())) for name, row in bench.read().items()} == dict(
        zip("abcde", [0, 2, 4, 6, 8], strict=True)
    )


def test_a_damaged_shard_is_one_clear_line(bench):
    (bench.folder / "a.tar").write_bytes(b"no tar")
    said = bench.predict(f"{bench.file(DOUBLE)}:double", source=str(bench.folder / "a.tar"))
    assert said.code == 2
    assert "a.tar cannot be read as tar" in said.err
    assert "Traceback" not in said.err
