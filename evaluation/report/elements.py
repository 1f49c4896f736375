"""The parts of a page, as HTML: every text that comes from a run is escaped here.

A run's name, its options and what its files say are text of others. A page has no scripts, and its
policy lets the browser run none and load nothing, whatever gets into it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from runtime.errors import printable
from runtime.files import read_text

_COLORS = "#2268d1 #cf6a10 #1a8a4a #8646d6 #c42a6b #0d8080 #8f5a1e #5a6878".split()
# What a report of many options or runs may say of one value.
_LONGEST_VALUE = 1000


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
    template = Template(read_text(Path(__file__).with_name("page.html")))
    return template.substitute(
        kind=text(kind),
        title=text(title),
        subtitle=text(subtitle),
        body="\n".join(body),
        images=images,
    )


def section(title: str, *body: str) -> str:
    """Return elements under a title; nothing if there are none."""
    shown = "\n".join(part for part in body if part)
    return f"<section>\n<h2>{text(title)}</h2>\n{shown}\n</section>" if shown else ""


def figures(drawn: Sequence[str]) -> str:
    """Return figures side by side; nothing without any."""
    return f'<div class="figures">{"".join(drawn)}</div>' if drawn else ""


def figure(name: str, title: str, kind: str, content: bytes, note: str, below: str = "") -> str:
    """Return a figure: an image with a title above, and elements and a note below."""
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return (
        f'<figure id="{name}"><h3>{text(title)}</h3><img alt="{text(title)}" src="{source}">'
        f"{below}<figcaption>{text(note)}</figcaption></figure>"
    )


def color(index: int) -> str:
    """Return the color of a series."""
    return _COLORS[index % len(_COLORS)]


def legend(places: Mapping[str, int]) -> str:
    """Return what each color means: labels, and the place of each among the colors."""
    items = [
        f'<li><span style="background:{color(place)}"></span>{text(label)}</li>'
        for label, place in places.items()
    ]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


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
    """Return a table, which scrolls by itself where it is too wide; nothing without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{text(title)}</th>" for title in titles)
    lines = ("".join(f"<td>{text(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def values(chosen: Mapping[str, Any]) -> str:
    """Return names with their values, in columns."""
    rows = [
        f"<div><dt>{text(name)}</dt><dd>{text(said(value))}</dd></div>"
        for name, value in chosen.items()
    ]
    return f'<div class="card"><dl>{"".join(rows)}</dl></div>' if rows else ""


def said(value: Any) -> str:
    """Return a value as it is typed on a command line; of a table the names as well."""
    if value is None or value in ("", []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = [f"{name} {one}" for name, one in value.items()]
    return ",".join(map(said, value)) if isinstance(value, list) else str(value)
