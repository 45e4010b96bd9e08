"""`docs/ranks.md` says what is true: its programs run, under torchrun where they say so, and its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interlock.cli import _commands
from interlock.drain import Drain, verify_sink

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ranks.md").read_text(encoding="utf-8")
TORCHRUN, PLAIN = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_program_for_torchrun_runs_with_two_ranks_and_again_with_one(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "predict.py").write_text(TORCHRUN)
    for world in (2, 1):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        done = subprocess.run(
            [*command, "predict.py"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    sink = f"npy:{tmp_path / 'out'}"
    report = verify_sink(sink)
    assert (report.ok, report.rows, report.missing) == (True, 1000, 0)
    for shard in (tmp_path / "out").glob("part-*"):
        assert np.array_equal(np.load(shard / "square.npy"), np.load(shard / "id.npy").astype(np.float32) ** 2)


def test_the_program_without_torch_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(PLAIN, "docs/ranks.md", "exec"), {})  # noqa: S102 - our own text
    promised = re.search(r"It prints `(.*)`, then `(.*)`, then `(.*)`\.", TEXT)
    assert promised is not None
    assert capsys.readouterr().out.splitlines() == list(promised.groups())


def test_its_commands_and_options_exist():
    for name, options in re.findall(r"^\| `interlock (\S+) SINK([^`]*)`", TEXT, re.MULTILINE):
        known = {option for parameter in _commands.commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", options)) <= known
    assert "--keep-first" in {option for parameter in _commands.commands["merge"].params for option in parameter.opts}


def test_the_files_of_a_rank_have_the_names_that_it_says(tmp_path):
    with Drain(f"npy:{tmp_path}", rank=(3, 4)) as drain:
        drain.put([1], np.ones(1))
    names = {path.name for path in (tmp_path / "_interlock").iterdir()}
    assert {"manifest-r00003.jsonl", "lock-r00003", "tmp-r00003", "open"} <= names
    (shard,) = tmp_path.glob("part-*")
    assert re.fullmatch(r"part-[0-9a-f]{8}-r00003-000000", shard.name)


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
