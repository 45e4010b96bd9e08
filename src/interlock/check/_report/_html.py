"""The report as one page: no network, no script, no font of others; for someone who has never seen the tool."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from interlock.check._model import MEANINGS
from interlock.check._report._lanes import MARKERS, drawings
from interlock.check._report._source import Folded, callers, excerpt, inside
from interlock.check._report._style import STYLE
from interlock.check._report._words import (
    LIMITS,
    OUTCOMES,
    VERDICTS,
    counted,
    does,
    headline,
    listed,
    replay_command,
    runs_in_short,
    shown,
)

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.check._model import Place, Report
    from interlock.check._report._review import Finding, Review

_INTRODUCTION = (
    "Python only <em>queues</em> work for an accelerator. The host and each <em>stream</em> of the device then go on "
    "at their own pace, and copies between them land whenever they are done. Two of them may touch the same bytes only "
    "if something makes one wait for the other. Each card below is a pair where nothing does: the program is right on "
    "one day and saves zeros or old values on another, without an error."
)
_SCHEDULES = (
    ("lazy", "nothing runs until somebody waits for it"),
    ("eager", "everything runs as soon as it may"),
    ("starve", "one stream is held back as long as possible"),
    ("pct", "a seeded random order with few switches"),
    ("random", "a seeded random order"),
)


def as_html(review: Review) -> str:
    """Return the review as a page of HTML that needs nothing else."""
    report = review.report
    title = escape(f"interlock check: {report.program}")
    cards = "".join(_card(finding, number, review) for number, finding in enumerate(review.findings, 1))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{STYLE}</style></head><body>{MARKERS}<main>"
        f"{_head(review)}{cards}{_failure(report)}{_asides(review)}"
        f"<footer><p>{escape(LIMITS)}</p></footer></main></body></html>\n"
    )


def _head(review: Review) -> str:
    report = review.report
    verdict = headline(len(review.findings), report)
    bad = bool(review.findings) or any(run.outcome in {"failed", "diverged"} for run in report.schedules)
    text = escape(f"{verdict[0].upper()}{verdict[1:]}")
    introduction = f'<p class="lead">{_INTRODUCTION}</p>' if review.findings else ""
    return (
        f'<p class="brand">interlock check · <code>{escape(report.program)}</code></p>'
        f'<h1 class="{"bad" if bad else "good"}">{text}</h1>{introduction}'
        f'<div class="top">{_contents(review)}{_runs(report)}</div>'
    )


def _contents(review: Review) -> str:
    if not review.findings:
        return '<section class="card"><h3>Hazards</h3><p>None.</p></section>'
    entries = "".join(
        f'<li><a href="#hazard-{number}">{escape(_sentence(finding))}</a> '
        f'<span class="aside mono">{escape(_at(finding.hazard.accesses[1], review.root))}</span></li>'
        for number, finding in enumerate(review.findings, 1)
    )
    return f'<section class="card"><h3>Hazards</h3><ol>{entries}</ol></section>'


def _runs(report: Report) -> str:
    rows = "".join(
        f'<tr><td class="mono">{escape(name)}</td>'
        f'<td class="{"good" if outcome == "clean" else "bad"}">{OUTCOMES[outcome]}</td>'
        f'<td class="count">{steps}</td></tr>'
        for name, outcome, steps in runs_in_short(report)
    )
    used = {run.name.partition(":")[0] for run in report.schedules}
    words = "; ".join(f"<em>{name}</em>: {text}" for name, text in _SCHEDULES if name in used)
    return (
        '<section class="card"><h3>Schedules</h3><table><tr><th>the device runs its work</th><th>outcome</th>'
        f'<th class="count">operations</th></tr>{rows}</table><p class="aside" style="margin:12px 0 0">{words}.</p>'
        "</section>"
    )


def _sentence(finding: Finding) -> str:
    meaning = MEANINGS[finding.hazard.kind]
    return f"{meaning[0].upper()}{meaning[1:]}"


def _at(place: Place, root: Path) -> str:
    return f"{shown(place.file, root)}:{place.line}"


def _card(finding: Finding, number: int, review: Review) -> str:
    hazard = finding.hazard
    tone = "may-race" if hazard.verdict == "may-race" else "bad"
    without, with_fix = drawings(hazard, f"h{number}")
    places = "".join(_place(index, place, review.root) for index, place in enumerate(hazard.accesses, 1))
    return (
        f'<article class="card hazard {hazard.verdict}" id="hazard-{number}"><div class="title">'
        f"<h2>{number}. {escape(_sentence(finding))}</h2>"
        f'<span class="tag mono">{hazard.code} {hazard.kind}</span>'
        f'<span class="tag {tone}">{hazard.verdict}</span>'
        f'<span class="aside">{VERDICTS[hazard.verdict]}</span></div>'
        f'<div class="two">{places}</div>'
        '<div class="two"><figure class="without"><figcaption>As written'
        "<span>The dashed arrow is the order that nothing enforces.</span></figcaption>"
        f"{without}</figure>"
        '<figure class="with"><figcaption>With the fix<span>The second access waits for the first.</span></figcaption>'
        f"{with_fix}</figure></div>{_facts(finding, review)}</article>"
    )


def _place(number: int, place: Place, root: Path) -> str:
    lines = "".join(
        f'<div{" class=guilty" if line.guilty else ""}><span class="no">{line.number}</span>{escape(line.text)}</div>'
        for line in excerpt(place.file, place.line)
    )
    source = f'<div class="source mono">{lines}</div>' if lines else ""
    through = [f"through {escape(text)}"] if (text := inside(place)) else []
    frames = [
        f"… {counted(frame.count, 'library frame')}"
        if isinstance(frame, Folded)
        else f'called from <span class="mono">{escape(shown(frame[0], root))}:{frame[1]}</span> in {escape(frame[2])}'
        for frame in callers(place)
    ]
    stack = f'<div class="stack">{"<br>".join([*through, *frames])}</div>' if through or frames else ""
    return (
        f'<section class="place n{number}"><header><div class="where"><span class="ball">{number}</span>'
        f'<span class="mono">{escape(_at(place, root))}</span> in {escape(place.function)}</div>'
        f'<div class="aside">{escape(does(place))}</div></header>{source}{stack}</section>'
    )


def _facts(finding: Finding, review: Review) -> str:
    hazard = finding.hazard
    facts = [
        ("Missing", "", escape(hazard.missing_edge)),
        ("Fix", ' class="fix"', escape(hazard.fix)),
    ]
    if hazard.witness:
        facts.append(("Witness", "", escape(hazard.witness)))
    facts.append(("Replay", "", f"<code>{escape(replay_command(review.report, hazard.replay))}</code>"))
    if len(finding.replays) > 1:
        facts.append(("Seen under", "", escape(listed(finding.replays))))
    return f"<dl>{''.join(f'<dt{style}>{name}</dt><dd{style}>{text}</dd>' for name, style, text in facts)}</dl>"


def _failure(report: Report) -> str:
    if report.failure is None:
        return ""
    return (
        '<section class="card"><h3>The program itself failed</h3>'
        f'<pre class="failure">{escape(report.failure)}</pre></section>'
    )


def _asides(review: Review) -> str:
    report, root = review.report, review.root
    unsupported = [
        f"<code>{escape(shown(one.file, root))}:{one.line}</code> {escape(one.operation)}: {escape(one.why)}"
        for one in report.unsupported
    ]
    suppressed = [
        f"{one.finding.hazard.code} <code>{escape(_at(one.finding.hazard.accesses[1], root))}</code>, by the "
        f"{one.where}: {escape(one.reason)}"
        for one in review.suppressed
    ]
    notes = [escape(text) for text in (*review.remarks, *report.notes)]
    sections = (
        ("Not checked, because it cannot be simulated", unsupported),
        ("Suppressed", suppressed),
        ("Notes", notes),
    )
    return "".join(
        f'<section class="card"><h3>{title}</h3><ul>{"".join(f"<li>{entry}</li>" for entry in entries)}</ul></section>'
        for title, entries in sections
        if entries
    )
