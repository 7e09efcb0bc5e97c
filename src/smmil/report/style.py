"""The look of a report: light and dark, readable on a laptop and on paper."""

CSS = """
:root { color-scheme: light dark; --ink: #1d2127; --soft: #5b636e; --paper: #fbfaf8; --card: #ffffff; --line: #dcdfe4;
  --mark: #0b6e4f; --mark-back: #e3f3ec; --code: #eef0f3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a3abb6; --paper: #14171b; --card: #1c2026;
  --line: #343a43; --mark: #7fdcb8; --mark-back: #16352a; --code: #262b33; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
p { max-width: 75ch; margin: .5rem 0; }
.lead { font-size: 1.08rem; color: var(--soft); }
ul, ol { max-width: 80ch; padding-left: 1.3rem; }
li { margin: .3rem 0; overflow-wrap: anywhere; }
code { background: var(--code); border-radius: 4px; padding: .1em .35em; font: .9em ui-monospace, Menlo, Consolas,
  monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0 1.4rem; }
table { border-collapse: collapse; min-width: 26rem; background: var(--card); font-variant-numeric: tabular-nums;
  border: 1px solid var(--line); }
caption { text-align: left; color: var(--soft); font-size: .92rem; padding: 0 0 .45rem; }
th, td { padding: .42rem .85rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child { text-align: left; }
thead th { font-size: .85rem; color: var(--soft); font-weight: 600; }
tbody th { font-weight: 600; }
td.best { background: var(--mark-back); color: var(--mark); font-weight: 700; }
figure { margin: 1.2rem 0 2rem; }
figure img { display: block; max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 8px; padding: .5rem; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .45rem; max-width: 85ch; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media print { main { max-width: none; padding: 0; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""
