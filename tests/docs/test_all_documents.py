"""What holds for every document: its programs run in some test, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from interlock.cli import _commands

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
NAMES = [str(document.relative_to(ROOT)) for document in DOCUMENTS]
COMMAND = re.compile(r"(?:^\$ |`|- run: |replay:  )(interlock [^`\n]*)", re.MULTILINE)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def headings_of(text: str) -> set[str]:
    """The anchors of a document, as GitHub makes them."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def refusal_of(command: str) -> str:
    """Why the command line would not take a command, as far as its words tell; empty if it would."""
    words = [word for word in shlex.split(command, comments=True)[1:] if word not in {"...", "…"}]
    if not words or words[0].startswith("-"):
        return ""
    known: click.Command = _commands
    while isinstance(known, click.Group) and words:
        found = known.commands.get(words[0])
        if found is None:
            return f"there is no command {words[0]}"
        known, words = found, words[1:]
    context = click.Context(known, **known.context_settings)
    try:
        known.parse_args(context, list(words))
    except (click.BadParameter, click.exceptions.Exit):
        return ""  # what a text leaves out, a file that is not here, --help
    except click.UsageError as error:
        return error.format_message()
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_somewhere(name):
    text = re.sub(r"^```.*?^```", "", text_of(name), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        found = (ROOT / name).parent / path if path else ROOT / name
        assert found.exists(), target
        if heading:
            assert heading in headings_of(found.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", NAMES)
def test_its_commands_and_options_exist(name):
    refused = {command: refusal_of(command) for command in COMMAND.findall(text_of(name))}
    assert not {command: why for command, why in refused.items() if why}


def test_a_command_that_does_not_exist_would_be_seen():
    assert refusal_of("interlock verify parquet:out") == ""
    assert "no command" in refusal_of("interlock predicts model.py:net")
    assert "No such option" in refusal_of("interlock verify parquet:out --fast")
    assert "unexpected extra argument" in refusal_of("interlock verify parquet:out npy:out")
    assert COMMAND.findall("$ interlock verify x\nsay `interlock status SINK` or `$ make`") == [
        "interlock verify x",
        "interlock status SINK",
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if "```python" in text_of(name)])
def test_its_programs_are_run_by_a_test(name):
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert any(f'"{Path(name).name}"' in path.read_text(encoding="utf-8") for path in tests)


def test_the_index_names_every_page():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\((\w+\.md)", text_of("docs/README.md")))
    assert "docs/README.md" in text_of("README.md")
