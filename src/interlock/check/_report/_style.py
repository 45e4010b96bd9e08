"""The style sheet of the HTML report: nothing from anywhere else; light and dark by the reader's choice."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5b6675; --line: #dde2e9; --code: #f3f5f8;
  --one: #2563c9; --one-soft: #e4edfc; --two: #b45309; --two-soft: #fdf0dd;
  --bad: #c81e3a; --bad-soft: #fdecef; --good: #14804a; --good-soft: #e5f6ed; --maybe: #8a6100; --maybe-soft: #fcf3d9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151b; --card: #1a2029; --ink: #e6eaf0; --soft: #9aa6b5; --line: #2e3743; --code: #141a22;
    --one: #79aaff; --one-soft: #1b2c4a; --two: #f4b266; --two-soft: #3d2b14;
    --bad: #ff7d8f; --bad-soft: #43202a; --good: #5fd396; --good-soft: #173527; --maybe: #e8c15a; --maybe-soft: #3a3015;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 56px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 4px 0 8px; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0; letter-spacing: -.01em; }
h3 { font-size: .8rem; text-transform: uppercase; letter-spacing: .07em; color: var(--soft); margin: 0 0 8px; }
p { margin: 0 0 10px; }
code, pre, .mono { font-family: ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", Menlo, Consolas, monospace; }
code, .mono { font-size: .87em; }
a { color: inherit; }
.brand { color: var(--soft); font-weight: 600; }
.bad { color: var(--bad); } .good { color: var(--good); }
.lead { font-size: 1.05rem; color: var(--soft); max-width: 78ch; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 24px 26px;
  margin-top: 22px; }
.top { display: grid; grid-template-columns: 3fr 2fr; gap: 22px; align-items: start; }
.hazard { border-top: 4px solid var(--bad); }
.hazard.may-race { border-top-color: var(--maybe); }
.title { display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: center; margin-bottom: 6px; }
.title h2 { flex: 1 1 100%; }
.tag { font-size: .8rem; font-weight: 600; border-radius: 99px; padding: 2px 11px; background: var(--code);
  border: 1px solid var(--line); }
.tag.bad { background: var(--bad-soft); border-color: transparent; }
.tag.may-race { background: var(--maybe-soft); color: var(--maybe); border-color: transparent; }
.aside { color: var(--soft); font-size: .92rem; }
.two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px; margin-top: 20px; }
@media (max-width: 860px) { .two, .top { grid-template-columns: minmax(0, 1fr); } }
figure { margin: 0; border: 1px solid var(--line); border-radius: 10px; padding: 14px 14px 6px; overflow-x: auto; }
figure.without { border-color: color-mix(in srgb, var(--bad) 40%, var(--line)); }
figure.with { border-color: color-mix(in srgb, var(--good) 40%, var(--line)); }
figcaption { font-weight: 600; font-size: .93rem; }
figcaption span { display: block; font-weight: 400; color: var(--soft); font-size: .87rem; }
figure svg { display: block; width: 100%; min-width: 440px; height: auto; margin-top: 8px; }
.markers { position: absolute; width: 0; height: 0; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
svg .who { text-anchor: end; font-weight: 600; }
svg .kind { text-anchor: end; fill: var(--soft); font-size: 11px; }
svg .time { fill: var(--soft); font-size: 11px; }
svg .small { font-size: 11.5px; fill: var(--soft); }
svg .lane { stroke: var(--line); stroke-width: 2; }
svg .bar { stroke-width: 1.5; }
svg .bar.n1 { fill: var(--one-soft); stroke: var(--one); } svg .bar.n2 { fill: var(--two-soft); stroke: var(--two); }
svg .hatch { fill: var(--one); opacity: .16; }
svg .still { font-size: 11.5px; font-style: italic; text-anchor: end; }
svg .dot { fill: var(--card); }
svg .number { text-anchor: middle; font-weight: 700; font-size: 12px; }
svg .number.n1, svg .tick.n1 { fill: var(--one); } svg .number.n2, svg .tick.n2 { fill: var(--two); }
svg .verb { font-weight: 600; }
svg .clash { fill: var(--bad-soft); }
svg .queue { stroke: var(--soft); stroke-width: 1.2; fill: none; }
svg .missing { stroke: var(--bad); stroke-width: 2.2; stroke-dasharray: 6 5; fill: none; }
svg .fixed { stroke: var(--good); stroke-width: 2.6; fill: none; }
svg .missing-text { fill: var(--bad); font-weight: 700; }
svg .fixed-text { fill: var(--good); font-weight: 700; text-anchor: end; }
svg .queue-head { fill: var(--soft); } svg .missing-head { fill: var(--bad); } svg .fixed-head { fill: var(--good); }
.place { border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
.place header { padding: 12px 14px; }
.place .where { font-weight: 600; overflow-wrap: anywhere; }
.ball { display: inline-grid; place-items: center; width: 22px; height: 22px; border-radius: 50%; font-size: .8rem;
  font-weight: 700; color: var(--card); margin-right: 6px; }
.n1 .ball, .ball.n1 { background: var(--one); } .n2 .ball, .ball.n2 { background: var(--two); }
.source { margin: 0; background: var(--code); padding: 10px 0; overflow-x: auto; font-size: .84rem; line-height: 1.6;
  border-top: 1px solid var(--line); }
.source div { padding: 0 14px; width: max-content; min-width: 100%; white-space: pre; color: var(--soft); }
.source .no { display: inline-block; min-width: 3.4ch; text-align: right; margin-right: 14px; opacity: .75; }
.n1 .guilty { background: var(--one-soft); color: var(--ink); box-shadow: inset 3px 0 var(--one); font-weight: 600; }
.n2 .guilty { background: var(--two-soft); color: var(--ink); box-shadow: inset 3px 0 var(--two); font-weight: 600; }
.stack { border-top: 1px solid var(--line); padding: 8px 14px; font-size: .84rem; color: var(--soft); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 10px 18px; margin: 22px 0 0; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
dt.fix, dd.fix { color: var(--good); } dd.fix { font-weight: 600; }
dd code { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: 2px 8px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: .82rem; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td { overflow-wrap: anywhere; } td + td { white-space: nowrap; }
td.count, th.count { text-align: right; padding-right: 0; font-variant-numeric: tabular-nums; }
ol, ul { margin: 0; padding-left: 1.3em; } li { margin: 3px 0; }
pre.failure { background: var(--code); border-radius: 8px; padding: 14px; overflow-x: auto; font-size: .84rem;
  margin: 0; }
footer { color: var(--soft); font-size: .9rem; margin-top: 26px; max-width: 90ch; }
@media print { .card { break-inside: avoid; } body { background: none; } }
"""
