"""The report as one page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from interlock.check._model import CODES, MEANINGS, Unsupported
from interlock.check._report._html import as_html
from interlock.check._report._lanes import EDGES, drawings
from interlock.check._report._review import review
from interlock.check._report._words import LIMITS

VOID = {"meta", "br", "link", "img"}


class Checker(HTMLParser):
    """Sees that tags nest, and gathers text and attributes."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)


def page_of(made, *hazards, **changes):
    checker = Checker()
    html = as_html(review(made.report(*hazards, **changes), root=made.folder))
    checker.feed(html)
    assert checker.open == []
    return html, " ".join("".join(checker.texts).split()), checker


def svg(text):
    return ET.fromstring(text)  # noqa: S314 - our own text


def classes(element):
    return [one.get("class", "") for one in element.iter()]


def test_the_page_says_what_where_why_and_what_to_do(made):
    _, text, _ = page_of(made, made.hazard(verdict="witnessed", witness="saw nan, not 0.25"))
    for part in (
        "1 hazard found in 2 runs",
        "The host reads before a copy has landed",
        "predict.py:9 in predict",
        'np.save("predictions.npy", host.numpy())',
        "nothing orders that after stream 'd2h'",
        "call event.synchronize() before predict.py:14",
        "saw nan, not 0.25",
        "interlock check --replay lazy predict.py",
        "nothing runs until somebody waits for it",
        " ".join(LIMITS.split()),
    ):
        assert part in text, part


def test_the_page_needs_nothing_from_anywhere(made):
    """No script, no address, and a policy that would stop any request."""
    html, _, checker = page_of(made, made.hazard())
    assert "default-src 'none'" in html
    assert not {tag for tag, _, _ in checker.attributes} & {"script", "link", "img", "iframe", "object"}
    for tag, name, value in checker.attributes:
        assert name not in {"src", "srcset", "onload", "onclick"}, tag
        assert name != "href" or value.startswith("#"), value
    assert not re.search(r"@import|@font-face|https?://|//[a-z]", html)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_links_inside_the_page_lead_somewhere(made):
    html, _, checker = page_of(made, made.hazard(), made.hazard("late-landing"))
    ids = [value for _, name, value in checker.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for _, name, value in checker.attributes if name == "href"}
    assert {"hazard-1", "hazard-2"} == targets
    assert targets | set(re.findall(r"url\(#([^)]*)\)", html)) <= set(ids)


def test_it_has_colours_for_light_and_dark(made):
    html, _, _ = page_of(made, made.hazard())
    light, dark = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    names = [set(re.findall(r"(--[\w-]+):", part)) for part in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", html)) <= names[0]


def test_what_the_program_says_cannot_become_markup(made):
    nasty = '<script>alert("x")</script>'
    made.edit("host.numpy())", f"host.numpy())  # {nasty}")
    place = made.place(14, nasty, "read", f"cuda:0/{nasty}", nasty)
    hazard = made.hazard(accesses=(made.copy, place), missing_edge=nasty, fix=nasty, witness=nasty, replay=nasty)
    unsupported = (Unsupported(nasty, nasty, 1, nasty),)
    html, text, _ = page_of(made, hazard, program=nasty, failure=nasty, notes=(nasty,), unsupported=unsupported)
    assert "<script" not in html
    assert nasty in text


def test_a_clean_program_has_a_short_page(made):
    html, text, _ = page_of(made)
    assert "No hazard found in 2 runs" in text
    assert "<figure" not in html


# ------------------------------------------------------------ drawings


def test_each_timeline_is_a_lane_and_both_accesses_are_on_theirs(made):
    side = made.place(8, "predict", "read", "cuda:0/side", "aten::add")
    for text in drawings(made.hazard("unordered-write", accesses=(made.copy, side)), "h1"):
        drawing = svg(text)
        lanes = [one.get("y1") for one in drawing.iter("line")]
        assert len(lanes) == len(set(lanes)) == 3, "the host, which queues, and two streams"
        assert [one.text for one in drawing.iter("text") if one.get("class") == "who"] == ["the host", "d2h", "side"]
        assert [name for name in classes(drawing) if name.startswith("bar")] == ["bar n1", "bar n2"]
        assert "line 9: queued" in text
        assert "line 8: queued" in text


def test_the_missing_order_is_dashed_in_one_drawing_and_the_fix_is_in_the_other(made):
    without, with_fix = (svg(text) for text in drawings(made.hazard(), "h1"))
    assert "missing" in classes(without)
    assert "fixed" not in classes(without)
    assert "fixed" in classes(with_fix)
    assert "missing" not in classes(with_fix)
    assert "event.synchronize()" in "".join(with_fix.itertext())


@pytest.mark.parametrize("fixed", [False, True])
def test_accesses_overlap_as_written_and_follow_each_other_with_the_fix(made, fixed):
    drawing = svg(drawings(made.hazard(), "h1")[fixed])
    first, second = (next(one for one in drawing.iter("rect") if one.get("class") == f"bar n{n}") for n in (1, 2))
    assert (int(second.get("x", "")) > int(first.get("x", "")) + int(first.get("width", ""))) is fixed


def test_a_loan_and_a_change_on_one_timeline_are_still_two_lanes(made):
    lent = made.place(7, "predict", "lent", "host", "handed to a writer")
    text, _ = drawings(made.hazard("moving-snapshot", accesses=(lent, made.read)), "h1")
    assert [one.text for one in svg(text).iter("text") if one.get("class") == "who"] == ["the host", "host (later)"]


def test_a_drawing_stays_inside_its_frame_whatever_the_names(made):
    long = made.place(99999, "f", "free", f"cuda:0/{'x' * 80}", "y" * 80)
    for text in drawings(made.hazard("freed-in-flight", accesses=(made.copy, long)), "h1"):
        drawing = svg(text)
        width = int(drawing.get("viewBox", "").split()[2])
        for one in drawing.iter("rect"):
            if one.get("x"):
                assert int(one.get("x", "")) + int(one.get("width", "")) <= width
        assert all(len(one.text or "") < 24 for one in drawing.iter("text"))


def test_every_kind_has_words_for_its_fix():
    assert set(EDGES) == set(CODES) == set(MEANINGS)
