"""The report: a table of each finding, sheets of what was found beside its class, and a page.

A cosine does not convince, two faces beside each other do. Sheets show findings at equal distances
from the surest to the least sure, because the least sure tell whether a threshold is right.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np

from data.clean.faces import EmbeddedFaces, Numbers
from data.clean.findings import Findings
from data.clean.labels import Kind, WrongLabels
from data.clean.overlap import Overlap
from data.inspect.sheets import SheetRow, draw_rows
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from data.verification.bin_file import VerificationSet
from runtime.errors import DataError
from runtime.files import write_atomically
from runtime.process.terminal import printable

_ROWS = 12
_OF_OWN, _OF_OTHER = 4, 4
_SAID = {
    Kind.MOVED: "are far from their class and near to another",
    Kind.JUNK: "are far from their class and near to none",
    Kind.UNSURE: "are in a class in which no two images agree",
}
# Its own sheets are beside a page on a disk, or on a server.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file:; base-uri 'none'; "
    "form-action 'none'"
)
_STYLE = "body{font-family:sans-serif;margin:2em}td,th{padding:2px 12px;text-align:left}"


class Finding(NamedTuple):
    """A kind of findings.

    Attributes:
        name: of its table and its sheets.
        said: what was found, a sentence without its count.
        header: the names of the columns.
        lines: of the table.
        rows: makes the row of a sheet from the number of a finding.
        total: the number of findings.
    """

    name: str
    said: str
    header: Sequence[str]
    lines: Sequence[Sequence[Union[str, int, float]]]
    rows: Callable[[int], SheetRow]
    total: int


class Report:
    """Describes what was found in a set."""

    def __init__(
        self,
        records: RecordSet,
        images: Numbers,
        faces: EmbeddedFaces,
        findings: Findings,
        targets: Sequence[VerificationSet],
    ) -> None:
        """Args: the set, the number in it of each embedding, these, and what was found."""
        self._records, self._images, self._faces = records, images, faces
        self._findings, self._targets = findings, targets

    def findings(self) -> list[Finding]:
        """Return all kinds of findings."""
        wrong = [self._wrong(self._findings.wrong.of_kind(kind), kind) for kind in Kind]
        pairs = list(zip(self._findings.overlaps, self._targets))
        both = [part for pair in pairs for part in (self._persons(*pair), self._copies(*pair))]
        return [*wrong, self._merges(), *both]

    def _wrong(self, found: WrongLabels, kind: Kind) -> Finding:
        faces, own = self._faces, found.own.tolist()
        others, cosines = found.others.tolist(), found.cosines.tolist()
        labels = faces.labels[found.images].tolist()
        lines = [
            (self._key(image), labels[n], own[n], others[n], cosines[n])
            for n, image in enumerate(found.images.tolist())
        ]

        def row(number: int) -> SheetRow:
            image = int(found.images[number])
            heading = [
                f"record {self._key(image)}",
                f"of class {labels[number]}: {own[number]:.2f}",
                f"class {others[number]}: {cosines[number]:.2f}",
            ]
            own_class = self._examples(labels[number], _OF_OWN, image, image)
            other = self._examples(others[number], _OF_OTHER, image) if others[number] >= 0 else []
            return SheetRow(heading, [[(self._payload(image), "")], own_class, other])

        header = ("key", "class", "cosine", "other class", "its cosine")
        name = kind.name.lower()
        said = f"images {_SAID[kind]}: the image, its class, the nearest other; cosines with it"
        return Finding(name, said, header, lines, row, len(lines))

    def _merges(self) -> Finding:
        merges, sizes = self._findings.merges, self._faces.sizes()
        lines = [
            (number, label, int(sizes[label]), cosine)
            for number, (group, cosine) in enumerate(zip(merges.groups, merges.cosines))
            for label in group
        ]

        def row(number: int) -> SheetRow:
            group = merges.groups[number]
            first = self._faces.members(group[0])[0]
            classes = " ".join(map(str, group[:3])) + (" ..." if len(group) > 3 else "")
            heading = [f"classes {classes}", f"{merges.cosines[number]:.2f} or more"]
            shown = [self._examples(label, 4, int(first)) for label in group[:3]]
            return SheetRow(heading, shown)

        header = ("group", "class", "images", "smallest cosine")
        said = "groups of classes are one identity: cosines with the first image"
        return Finding("merges", said, header, lines, row, len(merges.groups))

    def _persons(self, found: Overlap, target: VerificationSet) -> Finding:
        sizes = self._faces.sizes()
        columns = (found.persons.tolist(), found.classes.tolist(), found.cosines.tolist())
        lines = [
            (person, label, int(sizes[label]), cosine) for person, label, cosine in zip(*columns)
        ]

        def row(number: int) -> SheetRow:
            person, label, _, cosine = lines[number]
            heading = [f"{found.name} image {person}", f"class {label}: {cosine:.2f}"]
            face = [(target.images[int(person)], "")]
            return SheetRow(heading, [face, self._examples(int(label), 6)])

        header = ("image of the verification set", "class", "images", "cosine")
        said = (
            f"classes show one of the {found.people:,} people of {found.name}: an image from "
            "there, then the class"
        )
        return Finding(f"{found.name}-people", said, header, lines, row, len(lines))

    def _copies(self, found: Overlap, target: VerificationSet) -> Finding:
        columns = (found.originals.tolist(), found.copies.tolist(), found.copy_cosines.tolist())
        lines = [
            (
                original, self._key(copy), int(self._faces.labels[copy]), cosine,
                "yes" if target.images[original] == bytes(self._payload(copy)) else "no",
            )
            for original, copy, cosine in zip(*columns)
        ]  # fmt: skip

        def row(number: int) -> SheetRow:
            original, key, label, cosine, same = lines[number]
            heading = [
                f"{found.name} image {original}", f"record {key}, class {label}",
                "equal bytes" if same == "yes" else f"{cosine:.2f}",
            ]  # fmt: skip
            copy = int(found.copies[number])
            return SheetRow(
                heading, [[(target.images[int(original)], "")], [(self._payload(copy), "")]]
            )

        header = ("image of the verification set", "key", "class", "cosine", "equal bytes")
        said = f"images are copies of images of {found.name}: the image from there, the copy"
        return Finding(f"{found.name}-copies", said, header, lines, row, len(lines))

    def _examples(
        self, label: int, count: int, beside: int = -1, without: int = -1
    ) -> list[tuple[Payload, str]]:
        """Return images of a class at equal distances, with the cosines to one if it is given."""
        members = self._faces.members(label)
        members = members[members != without]
        in_core = members[self._findings.centers.in_core[members]]
        members = in_core if len(in_core) else members
        places = np.linspace(0, len(members) - 1, min(count, len(members))).round()
        chosen = members[places.astype(np.int64)]
        if beside < 0:
            return [(self._payload(int(image)), "") for image in chosen]
        cosines = self._faces.unit(chosen) @ self._faces.unit([beside])[0]
        return [
            (self._payload(image), "" if image == beside else f"{cosine:.2f}")
            for image, cosine in zip(chosen.tolist(), cosines)
        ]

    def _key(self, image: int) -> int:
        return self._records.key(int(self._images[image]))

    def _payload(self, image: int) -> Payload:
        try:
            return self._records.image(int(self._images[image]))[0]
        except BrokenRecordError:
            # Drawn as a cross.
            return b""


def write_report(folder: Path, findings: Sequence[Finding], summary: Sequence[tuple[str, str]],
                 sheets: int) -> list[str]:  # fmt: skip
    """Write tables, sheets and ``report.html``; return a line about each kind of findings.

    Args:
        folder: is made if it does not exist.
        findings: all kinds.
        summary: names and values at the head of the page.
        sheets: at most so many of each kind.

    Raises:
        DataError: a file cannot be written.
    """
    parts, lines = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for found in findings:
            stem = file_stem(found.name)
            table = folder / f"{stem}.tsv"
            write_atomically(table, "".join(_table(found)).encode())
            lines.append(f"{table}: {found.total:,} {found.said.partition(':')[0]}")
            parts.append(f"<h2>{found.total:,} {html.escape(found.said)}</h2>")
            name = html.escape(table.name)
            parts.append(f'<p><a href="./{name}">{name}</a></p>')
            for former in folder.glob(f"{stem}-[0-9]*.png"):
                former.unlink()
            for number, content in enumerate(_sheets(found, sheets), 1):
                name = html.escape(f"{stem}-{number}.png")
                write_atomically(folder / f"{stem}-{number}.png", content)
                parts.append(f'<p><img src="./{name}" alt="{name}"></p>')
        page = folder / "report.html"
        rows = (f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>" for a, b in summary)
        text = printable(_page("".join(rows), parts))
        write_atomically(page, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error.strerror}; choose another folder with --report"
        ) from None
    return [*lines, str(page)]


def file_stem(name: str) -> str:
    """Return how the names of the files of a kind of findings begin.

    The file of a verification set may have any name, as of another folder or a scheme.
    """
    return re.sub(r"[^\w.-]", "_", name)


def _table(found: Finding) -> Iterable[str]:
    yield "\t".join(found.header) + "\n"
    for line in found.lines:
        words = (f"{word:.4f}" if isinstance(word, float) else str(word) for word in line)
        yield "\t".join(words) + "\n"


def _sheets(found: Finding, most: int) -> Iterable[bytes]:
    shown = min(found.total, most * _ROWS)
    numbers = np.linspace(0, found.total - 1, shown).round().astype(np.int64).tolist()
    for start in range(0, shown, _ROWS):
        chosen = numbers[start : start + _ROWS]
        title = f"{found.name}, {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {found.total:,}"
        title += found.said[found.said.find(":") :]
        yield draw_rows([found.rows(number) for number in chosen], title)


def _page(summary: str, parts: Sequence[str]) -> str:
    return (
        '<!DOCTYPE html><html><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>data.clean</title>'
        f"<style>{_STYLE}</style></head><body><h1>data.clean</h1><table>{summary}</table>"
        f"{''.join(parts)}</body></html>\n"
    )
