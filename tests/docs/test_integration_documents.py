"""`docs/lightning.md` and `docs/accelerate.md` say what is true: their programs run, one after the other."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = {"lightning.md": 4, "accelerate.md": 2}


@pytest.fixture
def quiet():
    logger = logging.getLogger("pytorch_lightning")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning")
@pytest.mark.filterwarnings("ignore::FutureWarning:pytorch_lightning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:")
@pytest.mark.filterwarnings("ignore:.*pin_memory")  # Transformers asks for it where there is no device
@pytest.mark.parametrize("document", PROGRAMS)
def test_the_programs_run(document, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    programs = re.findall(r"^```python\n(.*?)^```", (DOCS / document).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(programs) == PROGRAMS[document]
    names: dict[str, object] = {"__name__": "__main__"}
    for number, program in enumerate(programs):
        exec(compile(program, f"{document}, program {number}", "exec"), names)  # noqa: S102 - our own text


@pytest.mark.parametrize("document", PROGRAMS)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", (DOCS / document).read_text("utf-8")):
        assert (DOCS / target).exists(), target
