"""The same on s3fs against a server that speaks S3; skipped where that is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

MISSING = [name for name in ("s3fs", "moto", "flask", "boto3") if find_spec(name) is None]

PROGRAM = r"""
import logging
import boto3, numpy as np
from fsspec.config import conf
from moto.server import ThreadedMotoServer
from interlock.drain import Drain, compact_sink, discard_sink, read_committed, verify_sink
from interlock.errors import SinkConflictError, SinkError

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
url = f"http://127.0.0.1:{server._server.server_address[1]}"
conf["s3"] = {"endpoint_url": url}
boto3.client("s3", endpoint_url=url).create_bucket(Bucket="out")

def put(drain, ids):
    ids = np.asarray(ids)
    drain.put(ids, {"output": ids * 1.5})

for scheme in ("parquet", "npy"):
    sink = f"{scheme}:s3://out/{scheme}"
    with Drain(sink, shard_bytes=80) as drain:
        assert drain._store.storage._leases.is_exclusive
        put(drain, range(6))
        try:
            Drain(sink)
        except SinkConflictError as error:
            assert "is being written" in str(error)
        else:
            raise AssertionError("two writers")
    for rank in range(2):
        with Drain(sink, rank=(rank, 2)) as drain:
            put(drain, [5, 6])
    assert verify_sink(sink).ok
    assert compact_sink(sink).shards == 1
    with Drain(sink) as drain:
        assert [one for one in range(9) if one in drain.committed] == list(range(7))
    assert verify_sink(sink).ok
    discard_sink(sink)
    assert not len(read_committed(sink))
try:
    Drain("parquet:s3://nowhere/out")
except SinkError as error:
    assert "bucket does not exist" in str(error), error
else:
    raise AssertionError("a bucket was made")
server.stop()
print("done")
"""


@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")
def test_s3fs_writes_a_sink_that_is_resumed_compacted_and_verified():
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.strip().endswith("done"), done.stderr[-3000:]
