"""`shard="auto"` in real groups of two processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

TORCH = """
import torch.distributed as group
group.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
"""
JAX = """
import jax
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
"""
PROGRAM = """
import json, sys
import numpy as np
rank, port = int(sys.argv[1]), sys.argv[2]
%s
from interlock import Feed
feed = Feed(np.arange(11), batch_size=2, shard="auto", workers=0)
print(json.dumps([batch.tolist() for batch in feed]))
"""


@pytest.mark.parametrize(("framework", "begin"), [("torch", TORCH), ("jax", JAX)], ids=["torch", "jax"])
def test_each_process_of_a_group_reads_its_own_part(framework, begin):
    pytest.importorskip(framework)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM % begin, str(rank), port], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        found = [json.loads(process.communicate(timeout=90)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert found == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]
