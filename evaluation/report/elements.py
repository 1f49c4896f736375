"""The parts of a page, as HTML: every text that comes from a run is escaped here.

A run's name, its options and what its files say are text of others. A page has no scripts, and its
policy lets the browser run none and load nothing, whatever gets into it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.process.terminal import printable

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src {}; base-uri 'none'; form-action 'none'"
)
COLORS, FIRST_COLOR = 8, 0x10
"""Colors of series, and the number in the name of the first one's variable."""
# What a report of many options or runs may say of one value.
_LONGEST_VALUE = 300
# Light and dark, from a telephone to a wide screen, and on paper. The variables --c01 to --c03 are
# ink, muted ink and grid, --c10 to --c17 the colors of series, which charts have as well.
_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --line: #dfe3e8; --accent: #1f5fc4;
  --c01: #1b2430; --c02: #566272; --c03: #dde2e8;
  --c10: #2268d1; --c11: #cf6a10; --c12: #1a8a4a; --c13: #8646d6;
  --c14: #c42a6b; --c15: #0d8080; --c16: #8f5a1e; --c17: #5a6878;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #11151a; --card: #1a2027; --line: #2d3641; --accent: #7fb1ff;
    --c01: #e6ebf1; --c02: #a3afbd; --c03: #323c48;
    --c10: #6ea8fe; --c11: #ffab5e; --c12: #5fd38d; --c13: #bd9bff;
    --c14: #ff86b0; --c15: #4fd1c5; --c16: #d9ad78; --c17: #a0acba;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--c01);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans",
    Arial, sans-serif;
}
main { max-width: 1280px; margin: 0 auto; padding: 28px 20px 48px; }
header { margin-bottom: 20px; }
.kind { color: var(--accent); font-size: 12px; font-weight: 600; letter-spacing: .08em;
  text-transform: uppercase; }
h1 { margin: 2px 0 4px; font-size: 28px; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 34px 0 12px; font-size: 18px; }
h3 { margin: 0; font-size: 15px; }
p { margin: 0 0 8px; }
p, li, td, th, dd, dt { overflow-wrap: anywhere; }
.muted { color: var(--c02); }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); }
.tile, figure, .card { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.tile { padding: 12px 14px; min-width: 0; }
.tile .label { color: var(--c02); font-size: 12.5px; }
.tile .value { font-size: 23px; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.tile .note { color: var(--c02); font-size: 12.5px; }
.figures { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; padding: 14px 14px 12px; min-width: 0; display: flex; flex-direction: column; }
figure svg { display: block; width: 100%; height: auto; margin-top: 6px;
  stroke-linejoin: round; stroke-linecap: butt; }
figure img { display: block; width: 100%; height: auto; margin-top: 8px; border-radius: 6px; }
figcaption { color: var(--c02); font-size: 12.5px; padding-top: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 6px 0 0; padding: 0;
  list-style: none; font-size: 12.5px; }
.legend span { display: inline-block; width: 11px; height: 11px; margin-right: 6px;
  border-radius: 3px; vertical-align: -1px; }
.bar { display: flex; height: 16px; border-radius: 8px; overflow: hidden; }
.bar span { min-width: 1px; }
.card { padding: 14px; }
.figures + .card { margin-top: 14px; }
.card + p { margin-top: 10px; }
.scroll { overflow-x: auto; padding: 0; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
.scroll td, .scroll th { overflow-wrap: normal; }
.scroll td:not(:first-child) { min-width: 96px; max-width: 420px; overflow-wrap: anywhere; }
th { color: var(--c02); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
dl { margin: 0; columns: 3 300px; column-gap: 28px; font-size: 13.5px; }
dl div { display: flex; gap: 12px; justify-content: space-between; padding: 3px 0;
  border-bottom: 1px solid var(--line); break-inside: avoid; }
dt { color: var(--c02); flex: 0 0 auto; max-width: 60%; }
dd { margin: 0; text-align: right; min-width: 0; font-family: ui-monospace, "SFMono-Regular",
  Menlo, Consolas, "Liberation Mono", monospace; font-size: 12.5px; }
code { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "Liberation Mono", monospace;
  font-size: 12.5px; overflow-wrap: anywhere; }
footer { margin-top: 32px; color: var(--c02); font-size: 12.5px; }
@media (max-width: 480px) {
  main { padding: 18px 16px 32px; }
  h1 { font-size: 23px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tile .value { font-size: 20px; }
}
@media print {
  main { max-width: none; }
  figure, .tile, .card { break-inside: avoid; }
}
"""


def text(value: Any) -> str:
    """Return a value as text of a page; what would be a tag is shown as it is written."""
    shown = printable(str(value))
    if len(shown) > _LONGEST_VALUE:
        shown = f"{shown[:_LONGEST_VALUE]}…"
    return html.escape(shown.encode(errors="replace").decode())


def page(kind: str, title: str, subtitle: str, body: Iterable[str], images: str = "data:") -> str:
    """Return a whole page.

    Args:
        kind: above the title, text.
        title: text.
        subtitle: text.
        body: elements.
        images: the sources of pictures that the browser may load.
    """
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(images)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
        f'<header><div class="kind">{text(kind)}</div><h1>{text(title)}</h1>',
        f'<p class="muted">{text(subtitle)}</p></header>',
        *body,
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def section(title: str, *body: str) -> str:
    """Return elements under a title; nothing if there are none."""
    shown = "\n".join(part for part in body if part)
    return f"<section>\n<h2>{text(title)}</h2>\n{shown}\n</section>" if shown else ""


def tiles(chosen: Iterable[tuple[str, str, str]]) -> str:
    """Return the numbers that are seen first: label, value and note of each."""
    cells = [
        f'<div class="tile"><div class="label">{text(label)}</div>'
        f'<div class="value">{text(value)}</div><div class="note">{text(note)}</div></div>'
        for label, value, note in chosen
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def figures(drawn: Sequence[str]) -> str:
    """Return figures side by side; nothing without any."""
    return f'<div class="figures">{"".join(drawn)}</div>' if drawn else ""


def figure(name: str, title: str, content: str, note: str) -> str:
    """Return a figure of some elements, with a title above and a note below."""
    return (
        f'<figure id="{name}"><h3>{text(title)}</h3>{content}'
        f"<figcaption>{text(note)}</figcaption></figure>"
    )


def color(index: int) -> str:
    """Return the color of a series."""
    return f"var(--c{FIRST_COLOR + index % COLORS:02x})"


def legend(places: Mapping[str, int]) -> str:
    """Return what each color means: labels, and the place of each among the colors."""
    items = [
        f'<li><span style="background:{color(place)}"></span>{text(label)}</li>'
        for label, place in places.items()
    ]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def picture_of(jpeg: bytes, name: str, title: str, note: str) -> str:
    """Return a figure with an image."""
    source = base64.b64encode(jpeg).decode()
    image = f'<img alt="{text(title)}" src="data:image/jpeg;base64,{source}">'
    return figure(name, title, image, note)


def bar(shares: Mapping[str, float]) -> str:
    """Return a bar of parts that are shares of 1, with their legend; nothing without any."""
    if not shares:
        return ""
    spans = [
        f'<span style="width:{share:.2%};background:{color(index)}"></span>'
        for index, share in enumerate(shares.values())
    ]
    labels = {f"{name} {share:.1%}": index for index, (name, share) in enumerate(shares.items())}
    return f'<div class="card"><div class="bar">{"".join(spans)}</div>{legend(labels)}</div>'


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table, which scrolls by itself where it is too wide; nothing without rows.

    ``Strong`` cells are in bold.
    """
    if not rows:
        return ""
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


class Strong(str):
    """Text in bold."""


def _cell(value: Any) -> str:
    shown = text(value)
    return f"<td>{f'<strong>{shown}</strong>' if isinstance(value, Strong) else shown}</td>"


def values(chosen: Mapping[str, Any]) -> str:
    """Return names with their values, in columns."""
    rows = [
        f"<div><dt>{text(name)}</dt><dd>{text(said(value))}</dd></div>"
        for name, value in chosen.items()
    ]
    return f'<div class="card"><dl>{"".join(rows)}</dl></div>' if rows else ""


def said(value: Any) -> str:
    """Return a value as it is typed on a command line."""
    if value is None or value in ("", []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(said, value)) if isinstance(value, list) else str(value)
