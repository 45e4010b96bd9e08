"""Signals: the first commits what is complete, the second ends at once, and the next run finishes the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

MODEL = """
import os, select
def model(batch):
    os.write(int(os.environ["READY"]), b"r")
    go = int(os.environ["GO"])
    while not select.select([go], [], [], 0.1)[0]:  # a signal right before a call that blocks does not end it
        pass
    os.read(go, 1)
    return batch
"""


class Child:
    """`interlock predict` in a process whose model says when it is called, and waits to be let go."""

    def __init__(self, bench, *options):
        said, ready = os.pipe()
        wait, go = os.pipe()
        self.said, self.go = said, go
        command = [sys.executable, "-m", "interlock", "predict", f"{bench.file(MODEL)}:model", bench.source, bench.sink]
        self.process = subprocess.Popen(
            [*command, "--batch-size", "2", "--json", "--quiet", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(ready, wait),
            env={**os.environ, "READY": str(ready), "GO": str(wait)},
        )
        os.close(ready)
        os.close(wait)

    def wait_for_model(self):
        assert os.read(self.said, 1) == b"r"

    def wait_for_note(self):
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == "\n"
        assert "stopping after this batch" in self.process.stderr.readline()

    def let_go(self):
        os.write(self.go, b"g")

    def end(self):
        out, err = self.process.communicate(timeout=60)
        os.close(self.go)
        os.close(self.said)
        return self.process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_commits_what_is_complete_and_the_next_run_finishes(bench, number, code):
    child = Child(bench)
    child.wait_for_model()
    child.let_go()
    child.wait_for_model()  # the second batch
    child.process.send_signal(number)
    child.wait_for_note()
    child.let_go()
    returned, out, err = child.end()
    assert returned == code, err
    assert '"rows_committed": 4' in out
    assert "Traceback" not in err
    assert sorted(bench.read()) == [0, 1, 2, 3]

    again = Child(bench)
    for _ in range(3):
        again.wait_for_model()
        again.let_go()
    returned, out, err = again.end()
    assert returned == 0, err
    assert '"rows_resumed": 4' in out
    assert sorted(bench.read()) == list(range(10))


def test_the_second_signal_ends_at_once(bench):
    child = Child(bench)
    child.wait_for_model()
    child.process.send_signal(signal.SIGTERM)
    child.wait_for_note()
    child.process.send_signal(signal.SIGINT)
    returned, out, err = child.end()
    assert returned == 130
    assert out == ""
    assert "Traceback" not in err


def test_a_killed_run_goes_on_where_it_was(bench):
    child = Child(bench)
    child.wait_for_model()
    child.let_go()
    child.wait_for_model()
    child.process.kill()
    assert child.end()[0] == -signal.SIGKILL
    again = Child(bench)
    for _ in range(5):
        again.let_go()
    returned, _, err = again.end()
    assert returned == 0, err
    assert sorted(bench.read()) == list(range(10))
