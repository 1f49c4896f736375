"""The report: a table of each finding, sheets of what was found beside its class, and a page.

A cosine does not convince, two faces beside each other do. Sheets show findings at equal distances
from the surest to the least sure, because the least sure tell whether a threshold is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import numpy as np

from data.inspect.sheets import SheetRow, draw_rows, evenly_spaced, payload_of
from data.records.record_set import RecordSet
from data.records.recordio import Payload
from evaluation.clean.faces import EmbeddedFaces, Numbers
from evaluation.clean.findings import Findings, Overlap
from evaluation.files import writing
from evaluation.report import elements
from runtime.files import StagedFiles, write_atomically

_ROWS, _EXAMPLES = 12, 4
_SAID = {
    "moved": "are far from their class and near to another",
    "junk": "are far from their class and near to none",
    "unsure": "are in a class in which no two images agree",
}


@dataclass
class Report:
    """Writes what was found in a set: tables, sheets, and a page of them."""

    folder: Path
    records: RecordSet
    faces: EmbeddedFaces
    findings: Findings
    sheets: int
    """The largest number of sheets of each kind of findings."""
    sections: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def write(
        self, summary: Mapping[str, str], classes: Numbers, reasons: Sequence[str]
    ) -> list[str]:
        """Write all files; return a line about each kind of findings, and the page.

        Args:
            summary: names and values at the head of the page.
            classes: the class of each image of the set in the new one, -1 if it is left out.
            reasons: why an image is left out or has another class; empty for others.

        Raises:
            DataError: a file cannot be written.
        """
        page, table = self.folder / "report.html", self.folder / "images.tsv"
        with writing(self.folder, "--report"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for kind in _SAID:
                self._write_wrong(kind)
            self._write_merges()
            for overlap in self.findings.overlaps:
                self._write_persons(overlap)
                self._write_copies(overlap)
            head = elements.section("Summary", elements.values(summary))
            # Its own sheets are in the same folder, on a disk or on a server.
            parts = ("Cleaning", "evaluation.clean", "", [head, *self.sections], "'self' file:")
            write_atomically(page, elements.page(*parts).encode())
            keys = map(self.records.key, range(len(self.records)))
            new = ("" if label < 0 else label for label in classes.tolist())
            rows = zip(keys, self.records.labels(), new, reasons)
            _write_table(table, "key, class, new class, reason", rows)
        return [*self.lines, str(page), f"{table}: what becomes of each image"]

    def _write_wrong(self, kind: str) -> None:
        found = self.findings.of_kind(kind)
        cells = [(self._key(one.image), self.faces.labels[one.image], *one[2:]) for one in found]

        def row(number: int) -> SheetRow:
            image, (key, label, own, other, cosine) = found[number].image, cells[number]
            classes = [one for one in (label, other) if one >= 0]
            shown = [self._examples(one, image) for one in classes]
            groups = [[(self._payload(image), "")], *shown]
            heading = [f"record {key}", f"of class {label}: {own:.2f}"]
            return [*heading, f"class {other}: {cosine:.2f}"], groups

        said = f"images {_SAID[kind]}: the image, its class, the nearest other; cosines with it"
        self._write_kind(kind, said, "key, class, cosine, other class, its cosine", cells, row)

    def _write_merges(self) -> None:
        merges = self.findings.merges
        cells = [
            (number, label, self.faces.sizes[label], cosine)
            for number, (group, cosine) in enumerate(merges)
            for label in group
        ]

        def row(number: int) -> SheetRow:
            group, cosine = merges[number]
            first = int(self.faces.members(group[0])[0])
            classes = " ".join(map(str, group[:3])) + (" ..." if len(group) > 3 else "")
            shown = [self._examples(label, first) for label in group[:3]]
            return [f"classes {classes}", f"{cosine:.2f} or more"], shown

        said = "groups of classes are one identity: cosines with the first image"
        header = "group, class, images, smallest cosine"
        self._write_kind("merges", said, header, cells, row, len(merges))

    def _write_persons(self, found: Overlap) -> None:
        name, sizes = found.pairs.name, self.faces.sizes
        cells = [(image, label, sizes[label], cosine) for image, label, cosine in found.persons]

        def row(number: int) -> SheetRow:
            image, label, cosine = found.persons[number]
            shown = [[(found.pairs.images[image], "")], self._examples(label)]
            return [f"{name} image {image}", f"class {label}: {cosine:.2f}"], shown

        said = f"classes show a person of {name}: an image from there, then the class"
        header = "image of the verification set, class, images, cosine"
        self._write_kind(f"{name}-people", said, header, cells, row)

    def _write_copies(self, found: Overlap) -> None:
        name, images = found.pairs.name, found.pairs.images
        cells = []
        for original, copy, cosine in found.copies:
            same = "yes" if images[original] == bytes(self._payload(copy)) else "no"
            cells.append((original, self._key(copy), self.faces.labels[copy], cosine, same))

        def row(number: int) -> SheetRow:
            original, key, label, cosine, same = cells[number]
            heading = [f"{name} image {original}", f"record {key}, class {label}", f"{cosine:.2f}"]
            copy = self._payload(found.copies[number].found)
            return heading, [[(images[original], "")], [(copy, "")]]

        said = f"images are copies of images of {name}: the image from there, the copy"
        header = "image of the verification set, key, class, cosine, equal bytes"
        self._write_kind(f"{name}-copies", said, header, cells, row)

    def _write_kind(
        self,
        name: str,
        said: str,
        header: str,
        cells: Sequence[Sequence[Any]],
        row: Callable[[int], SheetRow],
        count: Optional[int] = None,
    ) -> None:
        """Write the table and the sheets of a kind of findings; ``row`` describes one of them."""
        stem, count = file_stem(name), len(cells) if count is None else count
        _write_table(self.folder / f"{stem}.tsv", header, cells)
        summary, _, columns = said.partition(":")
        self.lines.append(f"{self.folder / stem}.tsv: {count:,} {summary}")
        shown = [f'<p><a href="./{stem}.tsv">{stem}.tsv</a></p>']
        for former in self.folder.glob(f"{stem}-[0-9]*.png"):
            former.unlink()
        numbers = evenly_spaced(np.arange(count), self.sheets * _ROWS)
        for start in range(0, len(numbers), _ROWS):
            chosen = numbers[start : start + _ROWS]
            title = f"{name}, {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {count:,}:{columns}"
            sheet = f"{stem}-{start // _ROWS + 1}.png"
            write_atomically(self.folder / sheet, draw_rows(list(map(row, chosen)), title))
            shown.append(f'<figure><img src="./{sheet}" alt="{sheet}"></figure>')
        self.sections.append(elements.section(f"{count:,} {said}", *shown))

    def _examples(self, label: int, beside: int = -1) -> list[tuple[Payload, str]]:
        """Return images of a class at equal distances, with the cosines to one if it is given."""
        members = self.faces.members(label)
        in_core = members[self.findings.centers.in_core[members]]
        chosen = evenly_spaced(in_core if len(in_core) else members, _EXAMPLES)
        notes = [""] * len(chosen)
        if beside >= 0:
            cosines = self.faces.unit(chosen) @ self.faces.unit([beside])[0]
            notes = [f"{cosine:.2f}" for cosine in cosines]
        return list(zip(map(self._payload, chosen), notes))

    def _key(self, image: int) -> int:
        return self.records.key(int(self.faces.images[image]))

    def _payload(self, image: int) -> Payload:
        return payload_of(self.records, int(self.faces.images[image]))


def file_stem(name: str) -> str:
    """Return how the names of the files of a kind of findings begin, without HTML's characters.

    The file of a verification set may have any name, as of another folder or a scheme.
    """
    return re.sub(r"[^\w.-]", "_", name)


def _write_table(path: Path, header: str, rows: Iterable[Sequence[Any]]) -> None:
    with StagedFiles() as files:
        file = files.open(path)
        for row in chain([header.split(", ")], rows):
            words = (f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row)
            file.write(("\t".join(words) + "\n").encode())
