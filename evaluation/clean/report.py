"""The report: a table of each finding, sheets of what was found beside its class, and a page.

A cosine does not convince, two faces beside each other do. Sheets show findings at equal distances
from the surest to the least sure, because the least sure tell whether a threshold is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

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


class Report:
    """Writes what was found in a set: tables, sheets, and a page of them.

    Attributes:
        folder: where to write.
        records: the set.
        images: the number in it of each embedding.
        faces: the embeddings.
        findings: what was found in them.
        sheets: the largest number of sheets of each kind of findings.
    """

    def __init__(
        self,
        folder: Path,
        records: RecordSet,
        images: Numbers,
        faces: EmbeddedFaces,
        findings: Findings,
        sheets: int,
    ) -> None:
        self._folder, self._sheets = folder, sheets
        self._records, self._images, self._faces = records, images, faces
        self._findings = findings
        self._sections: list[str] = []
        self._lines: list[str] = []

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
        page, table = self._folder / "report.html", self._folder / "images.tsv"
        with writing(self._folder, "--report"):
            self._folder.mkdir(parents=True, exist_ok=True)
            for kind in _SAID:
                self._write_wrong(kind)
            self._write_merges()
            for overlap in self._findings.overlaps:
                self._write_persons(overlap)
                self._write_copies(overlap)
            head = elements.section("Summary", elements.values(summary))
            # Its own sheets are in the same folder, on a disk or on a server.
            parts = ("Cleaning", "evaluation.clean", "", [head, *self._sections], "'self' file:")
            write_atomically(page, elements.page(*parts).encode())
            header = ("key", "class", "new class", "reason")
            keys = map(self._records.key, range(len(self._records)))
            new = ("" if label < 0 else label for label in classes.tolist())
            _write_table(table, header, zip(keys, self._records.labels(), new, reasons))
        return [*self._lines, str(page), f"{table}: what becomes of each image"]

    def _write_wrong(self, kind: str) -> None:
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
        self._write_kind(kind, said, header, lines, len(found), row)

    def _write_merges(self) -> None:
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
        self._write_kind("merges", said, header, lines, len(merges), row)

    def _write_persons(self, found: Overlap) -> None:
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
        self._write_kind(f"{name}-people", said, header, lines, len(lines), row)

    def _write_copies(self, found: Overlap) -> None:
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
        self._write_kind(f"{name}-copies", said, header, lines, len(lines), row)

    def _write_kind(
        self,
        name: str,
        said: str,
        header: Sequence[str],
        lines: Sequence[Sequence[Any]],
        count: int,
        row: Callable[[int], SheetRow],
    ) -> None:
        """Write the table and the sheets of a kind of findings; ``row`` describes one of them."""
        stem = file_stem(name)
        _write_table(self._folder / f"{stem}.tsv", header, lines)
        summary, _, columns = said.partition(":")
        self._lines.append(f"{self._folder / stem}.tsv: {count:,} {summary}")
        shown = [f'<p><a href="./{stem}.tsv">{stem}.tsv</a></p>']
        for former in self._folder.glob(f"{stem}-[0-9]*.png"):
            former.unlink()
        numbers = evenly_spaced(np.arange(count), self._sheets * _ROWS)
        for start in range(0, len(numbers), _ROWS):
            chosen = numbers[start : start + _ROWS]
            title = f"{name}, {chosen[0] + 1:,} to {chosen[-1] + 1:,} of {count:,}:{columns}"
            sheet = f"{stem}-{start // _ROWS + 1}.png"
            write_atomically(self._folder / sheet, draw_rows(list(map(row, chosen)), title))
            shown.append(f'<figure><img src="./{sheet}" alt="{sheet}"></figure>')
        self._sections.append(elements.section(f"{count:,} {said}", *shown))

    def _examples(self, label: int, count: int, beside: int = -1) -> list[tuple[Payload, str]]:
        """Return images of a class at equal distances, with the cosines to one if it is given."""
        members = self._faces.members(label)
        in_core = members[self._findings.centers.in_core[members]]
        chosen = evenly_spaced(in_core if len(in_core) else members, count)
        notes = [""] * len(chosen)
        if beside >= 0:
            cosines = self._faces.unit(chosen) @ self._faces.unit([beside])[0]
            shown = zip(chosen, cosines)
            notes = ["" if image == beside else f"{cosine:.2f}" for image, cosine in shown]
        return list(zip(map(self._payload, chosen), notes))

    def _key(self, image: int) -> int:
        return self._records.key(int(self._images[image]))

    def _payload(self, image: int) -> Payload:
        return payload_of(self._records, int(self._images[image]))


def file_stem(name: str) -> str:
    """Return how the names of the files of a kind of findings begin, without HTML's characters.

    The file of a verification set may have any name, as of another folder or a scheme.
    """
    return re.sub(r"[^\w.-]", "_", name)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with StagedFiles() as files:
        file = files.open(path)
        for row in chain([header], rows):
            words = (f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row)
            file.write(("\t".join(words) + "\n").encode())
