"""The parts of a page, as HTML: every text that comes from a run is escaped here.

A run's name, its options and what its files say are text of others. A page has no scripts, and its
policy lets the browser run none and load nothing, whatever gets into it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.files import read_text
from runtime.process.terminal import printable

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src {}; base-uri 'none'; form-action 'none'"
)
COLORS, FIRST_COLOR = 8, 0x10
"""Colors of series, and the number in the name of the first one's variable."""
# What a report of many options or runs may say of one value.
_LONGEST_VALUE = 300


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
    style = read_text(Path(__file__).with_name("style.css"))
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(images)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
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
