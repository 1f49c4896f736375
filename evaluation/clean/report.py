"""The report: a table of each finding, sheets of what was found beside its class, and a page.

A cosine does not convince, two faces beside each other do. Sheets show findings at equal distances
from the surest to the least sure, because the least sure tell whether a threshold is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.inspect.sheets import SheetRow, draw_rows
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from evaluation.clean.faces import EmbeddedFaces, Numbers
from evaluation.clean.findings import Findings, Overlap
from evaluation.clean.labels import Kind
from evaluation.files import writing
from evaluation.report import elements
from runtime.files import write_atomically

_ROWS, _EXAMPLES = 12, 4
_SAID = {
    Kind.MOVED: "are far from their class and near to another",
    Kind.JUNK: "are far from their class and near to none",
    Kind.UNSURE: "are in a class in which no two images agree",
}


class Finding(NamedTuple):
    """A kind of findings.

    Attributes:
        name: of its table and its sheets.
        said: what was found, a sentence without its count.
        header: the names of the columns.
        lines: of the table.
        total: the number of findings.
        row: makes the row of a sheet from the number of a finding.
    """

    name: str
    said: str
    header: Sequence[str]
    lines: Sequence[Sequence[Any]]
    total: int
    row: Callable[[int], SheetRow]


class Report:
    """Describes what was found in a set."""

    def __init__(
        self, records: RecordSet, images: Numbers, faces: EmbeddedFaces, findings: Findings
    ) -> None:
        """Args: the set, the number in it of each embedding, these, and what was found."""
        self._records, self._images, self._faces = records, images, faces
        self._findings = findings

    def findings(self) -> Iterator[Finding]:
        """Yield all kinds of findings."""
        yield from map(self._wrong, Kind)
        yield self._merges()
        for overlap in self._findings.overlaps:
            yield self._persons(overlap)
            yield self._copies(overlap)

    def _wrong(self, kind: Kind) -> Finding:
        found = self._findings.of_kind(kind)
        lines = [
            (self._key(one.image), int(self._faces.labels[one.image]), *one[2:]) for one in found
        ]

        def row(number: int) -> SheetRow:
            image, (key, label, own, other, cosine) = found[number].image, lines[number]
            its_own, nearest = f"of class {label}: {own:.2f}", f"class {other}: {cosine:.2f}"
            of_own = self._examples(label, _EXAMPLES, image)
            of_other = self._examples(other, _EXAMPLES, image) if other >= 0 else []
            groups = [[(self._payload(image), "")], of_own, of_other]
            return [f"record {key}", its_own, nearest], groups

        said = f"images {_SAID[kind]}: the image, its class, the nearest other; cosines with it"
        header = ("key", "class", "cosine", "other class", "its cosine")
        return Finding(kind.name.lower(), said, header, lines, len(lines), row)

    def _merges(self) -> Finding:
        merges = self._findings.merges
        lines = [
            (number, label, self._faces.sizes[label], cosine)
            for number, (group, cosine) in enumerate(merges)
            for label in group
        ]

        def row(number: int) -> SheetRow:
            group, cosine = merges[number]
            first = int(self._faces.members(group[0])[0])
            classes = " ".join(map(str, group[:3])) + (" ..." if len(group) > 3 else "")
            shown = [self._examples(label, _EXAMPLES, first) for label in group[:3]]
            return [f"classes {classes}", f"{cosine:.2f} or more"], shown

        said = "groups of classes are one identity: cosines with the first image"
        header = ("group", "class", "images", "smallest cosine")
        return Finding("merges", said, header, lines, len(merges), row)

    def _persons(self, found: Overlap) -> Finding:
        name, sizes = found.pairs.name, self._faces.sizes
        lines = [(image, label, sizes[label], cosine) for image, label, cosine in found.persons]

        def row(number: int) -> SheetRow:
            image, label, cosine = found.persons[number]
            face = [(found.pairs.images[image], "")]
            heading = [f"{name} image {image}", f"class {label}: {cosine:.2f}"]
            return heading, [face, self._examples(label, 6)]

        said = (
            f"classes show one of the {found.people:,} people of {name}: an image from there, "
            "then the class"
        )
        header = ("image of the verification set", "class", "images", "cosine")
        return Finding(f"{name}-people", said, header, lines, len(lines), row)

    def _copies(self, found: Overlap) -> Finding:
        name, images = found.pairs.name, found.pairs.images
        lines = []
        for original, copy, cosine in found.copies:
            same = images[original] == bytes(self._payload(copy))
            label = self._faces.labels[copy]
            lines.append((original, self._key(copy), label, cosine, "yes" if same else "no"))

        def row(number: int) -> SheetRow:
            original, key, label, cosine, same = lines[number]
            how = "equal bytes" if same == "yes" else f"{cosine:.2f}"
            heading = [f"{name} image {original}", f"record {key}, class {label}", how]
            copy = self._payload(found.copies[number].found)
            return heading, [[(images[original], "")], [(copy, "")]]

        said = f"images are copies of images of {name}: the image from there, the copy"
        header = ("image of the verification set", "key", "class", "cosine", "equal bytes")
        return Finding(f"{name}-copies", said, header, lines, len(lines), row)

    def _examples(self, label: int, count: int, beside: int = -1) -> list[tuple[Payload, str]]:
        """Return images of a class at equal distances, with the cosines to one if it is given."""
        members = self._faces.members(label)
        in_core = members[self._findings.centers.in_core[members]]
        members = in_core if len(in_core) else members
        places = np.linspace(0, len(members) - 1, min(count, len(members))).round()
        chosen = members[places.astype(np.int64)]
        notes = [""] * len(chosen)
        if beside >= 0:
            cosines = self._faces.unit(chosen) @ self._faces.unit([beside])[0]
            shown = zip(chosen.tolist(), cosines)
            notes = ["" if image == beside else f"{cosine:.2f}" for image, cosine in shown]
        return list(zip(map(self._payload, chosen.tolist()), notes))

    def _key(self, image: int) -> int:
        return self._records.key(int(self._images[image]))

    def _payload(self, image: int) -> Payload:
        try:
            return self._records.image(int(self._images[image]))[0]
        except BrokenRecordError:
            # Drawn as a cross.
            return b""


def write_report(
    folder: Path, findings: Iterable[Finding], summary: Sequence[tuple[str, str]], sheets: int
) -> list[str]:
    """Write tables, sheets and ``report.html``; return a line about each kind of findings.

    Args:
        folder: is made if it does not exist.
        findings: all kinds.
        summary: names and values at the head of the page.
        sheets: at most so many of each kind.

    Raises:
        DataError: a file cannot be written.
    """
    sections, lines = [elements.section("Summary", elements.values(dict(summary)))], []
    page = folder / "report.html"
    with writing(folder, "--report"):
        folder.mkdir(parents=True, exist_ok=True)
        for found in findings:
            stem, count = file_stem(found.name), f"{found.total:,}"
            table = folder / f"{stem}.tsv"
            write_atomically(table, "".join(_table(found)).encode())
            lines.append(f"{table}: {count} {found.said.partition(':')[0]}")
            shown = [f'<p><a href="./{stem}.tsv">{stem}.tsv</a></p>']
            for former in folder.glob(f"{stem}-[0-9]*.png"):
                former.unlink()
            for number, sheet in enumerate(_sheets(found, sheets), 1):
                name = f"{stem}-{number}.png"
                write_atomically(folder / name, sheet)
                shown.append(f'<figure><img src="./{name}" alt="{name}"></figure>')
            sections.append(elements.section(f"{count} {found.said}", *shown))
        # Its own sheets are in the same folder, on a disk or on a server.
        content = elements.page("Cleaning", "evaluation.clean", "", sections, "'self' file:")
        write_atomically(page, content.encode())
    return [*lines, str(page)]


def file_stem(name: str) -> str:
    """Return how the names of the files of a kind of findings begin, without HTML's characters.

    The file of a verification set may have any name, as of another folder or a scheme.
    """
    return re.sub(r"[^\w.-]", "_", name)


def _table(found: Finding) -> Iterable[str]:
    for line in (found.header, *found.lines):
        words = (f"{word:.4f}" if isinstance(word, float) else str(word) for word in line)
        yield "\t".join(words) + "\n"


def _sheets(found: Finding, most: int) -> Iterable[bytes]:
    shown = min(found.total, most * _ROWS)
    numbers = np.linspace(0, found.total - 1, shown).round().astype(np.int64).tolist()
    for start in range(0, shown, _ROWS):
        chosen = numbers[start : start + _ROWS]
        title = f"{found.name}, {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {found.total:,}"
        title += found.said[found.said.find(":") :]
        yield draw_rows(list(map(found.row, chosen)), title)
