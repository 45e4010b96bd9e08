"""`docs/check.md` says what is true: its programs run, its tables and its report are those of the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.check._model import CODES, MEANINGS
from interlock.check._report._json import as_dict
from interlock.check._report._review import review
from interlock.check._report._words import VERDICTS
from interlock.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python\n(?=# (\S+\.py)\n)(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hazards_of(name, capfd):
    code = main(["check", "--schedules", "lazy", "--json", "report.json", name])
    found = json.loads(Path("report.json").read_text())["hazards"]
    assert code == bool(found)
    return found, capfd.readouterr().out


def test_every_program_has_a_name_or_is_a_fragment():
    blocks = len(re.findall(r"^```python$", TEXT, re.MULTILINE))
    assert len(PROGRAMS) == blocks - TEXT.count("<!-- fragment -->") == 4


@pytest.mark.usefixtures("folder")
def test_the_program_has_the_hazard_that_the_text_shows(capfd):
    pytest.importorskip("torch")
    found, out = hazards_of("predict.py", capfd)
    assert [place["line"] for place in found[0]["accesses"]] == [8, 9]
    shown = re.search(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert shown is not None
    said = {line.rstrip() for line in out.splitlines()}
    promised = [line for line in shown[1].splitlines() if re.match(r"IL|the host|  \d  |  replay:| .* │ ", line)]
    assert len(promised) == 11
    assert [line for line in promised if line not in said] == []


@pytest.mark.usefixtures("folder")
def test_the_fixed_program_is_clean(capfd):
    pytest.importorskip("torch")
    found, out = hazards_of("fixed.py", capfd)
    assert found == [], out


def test_the_test_passes_under_each_schedule(folder):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:interlock", "-p", "interlock._pytest_plugin"]
    done = subprocess.run([*command, "test_predictions.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_simulate_finds_what_the_text_says(folder):
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "with_simulate.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("['early-read'"), done.stderr


def test_the_tables_are_those_of_the_code():
    rows = re.findall(r"^\| (IL\d{3}) \| `([\w-]+)` \| (.*) \|$", TEXT, re.MULTILINE)
    assert rows == [(code, kind, MEANINGS[kind]) for kind, code in CODES.items()]
    assert [f"| `{verdict}` | {meaning} |" in TEXT for verdict, meaning in VERDICTS.items()] == [True] * 3


def test_the_json_has_the_keys_of_the_code(made):
    shown = re.search(r"^```json\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert shown is not None
    promised, real = json.loads(shown[1]), as_dict(review(made.report(made.hazard()), root=made.folder))
    assert list(promised) == list(real)
    assert list(promised["hazards"][0]) == list(real["hazards"][0])
    assert list(promised["hazards"][0]["accesses"][0]) == list(real["hazards"][0]["accesses"][0])
    assert list(promised["schedules"][0]) == list(real["schedules"][0])


def test_each_option_is_explained_and_none_that_is_not_there(capfd):
    assert main(["check", "--help"]) == 0
    there = set(re.findall(r"--[a-z][a-z-]+", capfd.readouterr().out)) - {"--help"}
    of_others = {"--interlock", "--epochs", "--index-url"}
    assert set(re.findall(r"(?<![\w|-])--[a-z][a-z-]+", TEXT)) - of_others == there
