"""`docs/{torch,jax,trace,failures}.md` say what is true: their programs run, and go on when killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interlock.drain import read_committed, verify_sink

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"(?:^<!-- gpu: (\w+) -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {"torch.md": 5, "jax.md": 5, "trace.md": 1, "failures.md": 1}
NEEDS = {"torch.md": "torch", "jax.md": "jax", "trace.md": "numpy", "failures.md": "pyarrow"}

KILLED = """
import os, runpy, signal
from interlock import Drain

put, puts = Drain.put, []

def counting(drain, *arguments):
    if len(puts) == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    puts.append(put(drain, *arguments))
    if len(puts) == 6:
        drain.flush()

Drain.put = counting
runpy.run_path("embed.py", run_name="__main__")
"""


def programs_of(page: str) -> list[tuple[str, str]]:
    """What each program of a page needs a GPU for, and its text."""
    found: list[tuple[str, str]] = PROGRAM.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(found) == PAGES[page]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_run_one_after_the_other(page, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, (gpu, program) in enumerate(programs_of(page)):
        if not gpu and "sys.argv" not in program:
            exec(compile(program, f"{page}, program {number}", "exec"), names)  # noqa: S102 - our own text


@pytest.mark.parametrize("page", ["torch.md", "jax.md"])
def test_its_first_program_goes_on_after_it_was_killed(page, tmp_path):
    pytest.importorskip(NEEDS[page])
    (tmp_path / "embed.py").write_text(programs_of(page)[0][1])
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    sink = f"parquet:{tmp_path / 'embeddings'}"
    assert len(read_committed(sink)) == 6 * 256
    done = subprocess.run(
        [sys.executable, "embed.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    total = int(done.stdout.split()[0])
    assert done.stdout == f"{total} of {total} rows are committed\n"
    report = verify_sink(sink)
    assert (report.ok, report.rows, report.missing) == (True, total, 0)


def run_two(command, folder):
    """Run a program as both of two processes of JAX, with two devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen([sys.executable, *command, address, "2", str(number)], cwd=folder, env=environment)
        for number in range(2)
    ]
    try:
        assert [process.wait(timeout=110) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_two_processes_of_jax_put_their_shards_of_one_array(tmp_path):
    pytest.importorskip("jax")
    (program,) = (text for _, text in programs_of("jax.md") if "sys.argv" in text)
    (tmp_path / "squares.py").write_text(program)
    for _ in range(2):  # the second time all is done
        run_two(["squares.py"], tmp_path)
    report = verify_sink(f"npy:{tmp_path / 'squares'}")
    assert (report.ok, report.rows, report.shards, report.missing) == (True, 64, 2, 0)
    found: dict[int, float] = {}
    for shard in (tmp_path / "squares").glob("part-*"):
        ids, values = np.load(shard / "id.npy"), np.load(shard / "square.npy")
        assert len(ids) == 32
        found.update(zip(ids.tolist(), values.tolist(), strict=True))
    assert found == {number: float(number) ** 2 for number in range(64)}
