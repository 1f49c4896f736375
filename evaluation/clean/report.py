"""The report: a table of each finding, sheets of what was found beside its class, and a page.

A cosine does not convince, two faces beside each other do. Sheets show findings at equal distances
from the surest to the least sure, because the least sure tell whether a threshold is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np

from data.inspect.sheets import draw_rows, evenly_spaced, payload_of
from data.records.record_set import RecordSet
from data.records.recordio import Payload
from evaluation.clean.faces import EmbeddedFaces, Numbers
from evaluation.clean.findings import Findings
from evaluation.files import writing
from evaluation.report import elements
from runtime.files import StagedFiles, write_atomically

_ROWS, _EXAMPLES, _LONGEST_LINE = 12, 4, 24
_SAID = {
    "moved": "are far from their class and near to another",
    "junk": "are far from their class and near to none",
    "unsure": "are in a class in which no two images agree",
}


class Finding(NamedTuple):
    """A row of a table, and of a sheet.

    Attributes:
        cells: of the table; the sheet has them beside the images.
        images: the numbers of embeddings, or encoded images.
        classes: of which some images are shown, -1 for none.
        beside: the embedding whose cosines with these images are shown, -1 for none.
    """

    cells: Sequence[Any]
    images: Sequence[Union[int, bytes]]
    classes: Sequence[int] = ()
    beside: int = -1


@dataclass
class Report:
    """Writes what was found in a set: tables, sheets, and a page of them."""

    folder: Path
    records: RecordSet
    faces: EmbeddedFaces
    findings: Findings
    sheets: int
    """The largest number of sheets of each kind of findings."""

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
        sections, lines = [elements.section("Summary", elements.values(summary))], []
        with writing(self.folder, "--report"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, said, header, found in self._kinds():
                shown = self._write_kind(name, said, header.split(", "), found)
                sections.append(elements.section(f"{len(found):,} {said}", *shown))
                about = said.partition(":")[0]
                lines.append(f"{self.folder / file_stem(name)}.tsv: {len(found):,} {about}")
            # Its own sheets are in the same folder, on a disk or on a server.
            parts = ("Cleaning", "evaluation.clean", "", sections, "'self' file:")
            write_atomically(page, elements.page(*parts).encode())
            keys = map(self.records.key, range(len(self.records)))
            new = ("" if label < 0 else label for label in classes.tolist())
            rows = zip(keys, self.records.labels(), new, reasons)
            _write_table(table, ("key", "class", "new class", "reason"), rows)
        return [*lines, str(page), f"{table}: what becomes of each image"]

    def _kinds(self) -> Iterator[tuple[str, str, str, list[Finding]]]:
        """Yield the name of each kind, what it is, the header of its table, and its findings."""
        labels, sizes = self.faces.labels, self.faces.sizes
        for kind, said in _SAID.items():
            found = [
                Finding(
                    (self._key(image), labels[image], own, other, cosine),
                    *([image], [labels[image], other], image),
                )
                for image, its_kind, own, other, cosine in self.findings.wrong
                if its_kind == kind
            ]
            said = f"images {said}: the image, its class, the nearest other; cosines with it"
            yield kind, said, "key, class, cosine, other class, its cosine", found
        found = [
            Finding(
                (" ".join(map(str, group)), sizes[list(group)].sum(), cosine),
                *([], group[:3], int(self.faces.members(group[0])[0])),
            )
            for group, cosine in self.findings.merges
        ]
        said = "groups of classes are one identity: cosines with the first image"
        yield "merges", said, "classes, images, smallest cosine", found
        for pairs, persons, copies in self.findings.overlaps:
            found = [
                Finding((image, label, sizes[label], cosine), [pairs.images[image]], [label])
                for label, image, cosine in persons
            ]
            said = f"classes show a person of {pairs.name}: an image from there, then the class"
            yield f"{pairs.name}-people", said, "image, class, images, cosine", found
            found = []
            for copy, image, cosine in copies:
                same = "yes" if pairs.images[image] == bytes(self._payload(copy)) else "no"
                cells = (image, self._key(copy), labels[copy], cosine, same)
                found.append(Finding(cells, [pairs.images[image], copy]))
            said = f"images are copies of images of {pairs.name}: the image from there, the copy"
            yield f"{pairs.name}-copies", said, "image, key, class, cosine, equal bytes", found

    def _write_kind(
        self, name: str, said: str, header: Sequence[str], found: Sequence[Finding]
    ) -> list[str]:
        """Write the table and the sheets of a kind of findings; return elements of the page."""
        stem = file_stem(name)
        _write_table(self.folder / f"{stem}.tsv", header, (one.cells for one in found))
        shown = [f'<p><a href="./{stem}.tsv">{stem}.tsv</a></p>']
        for former in self.folder.glob(f"{stem}-[0-9]*.png"):
            former.unlink()
        numbers = evenly_spaced(np.arange(len(found)), self.sheets * _ROWS)
        for start in range(0, len(numbers), _ROWS):
            chosen = numbers[start : start + _ROWS]
            place = f"{chosen[0] + 1:,} to {chosen[-1] + 1:,} of {len(found):,}"
            rows = []
            for one in (found[number] for number in chosen):
                lines = [f"{title} {_word(cell)}" for title, cell in zip(header, one.cells)]
                groups = [[(self._payload(image), "")] for image in one.images]
                groups += [self._examples(label, one.beside) for label in one.classes]
                rows.append(([line[:_LONGEST_LINE] for line in lines], groups))
            sheet, columns = f"{stem}-{start // _ROWS + 1}.png", said.partition(":")[2]
            drawn = draw_rows(rows, f"{name}, {place}:{columns}")
            write_atomically(self.folder / sheet, drawn)
            shown.append(f'<figure><img src="./{sheet}" alt="{sheet}"></figure>')
        return shown

    def _examples(self, label: int, beside: int) -> list[tuple[Payload, str]]:
        """Return images of a class at equal distances, with the cosines to one if it is given."""
        if label < 0:
            return []
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

    def _payload(self, image: Union[int, bytes]) -> Payload:
        if isinstance(image, bytes):
            return image
        return payload_of(self.records, int(self.faces.images[image]))


def file_stem(name: str) -> str:
    """Return how the names of the files of a kind of findings begin, without HTML's characters.

    The file of a verification set may have any name, as of another folder or a scheme.
    """
    return re.sub(r"[^\w.-]", "_", name)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with StagedFiles() as files:
        file = files.open(path)
        for row in chain([header], rows):
            file.write(("\t".join(map(_word, row)) + "\n").encode())


def _word(cell: Any) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
