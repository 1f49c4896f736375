"""What becomes of each image: its class in the new set, or why it is left out.

The findings say what looks wrong; the user says what is to be done about it. Both together are one
table, which is written whether or not a new set is, and from which the new set follows.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from data.worker_threads import track
from evaluation.clean.faces import EmbeddedFaces, Numbers
from evaluation.clean.findings import Findings

_NO_CLASS = -1
_REASONS = "<U10"


class Plan(NamedTuple):
    """The new set.

    Attributes:
        classes: int64 [N]: the class of each image in the new set, -1 if it is left out.
        reasons: text [N]: why an image is left out or has another class; empty for others.
        num_classes: of the new set.
    """

    classes: NDArray[np.int64]
    reasons: NDArray[np.str_]
    num_classes: int

    def counts(self) -> Counter[str]:
        """Return how many images are left out, by the reason."""
        return Counter(self.reasons[self.classes < 0].tolist())

    def write_table(self, file: BinaryIO, records: RecordSet) -> None:
        """Write a line for each image: key, class, class in the new set, reason."""
        file.write(b"key\tclass\tnew class\treason\n")
        columns = (column.tolist() for column in (records.labels(), self.classes, self.reasons))
        for image, (label, new, reason) in enumerate(zip(*columns)):
            shown = "" if new < 0 else new
            line = f"{records.key(image)}\t{label}\t{shown}\t{reason}\n"
            file.write(line.encode())

    def write_set(self, records: RecordSet, folder: Path) -> None:
        """Write the new set; the images of a class stay in their order, byte for byte.

        Raises:
            DataError: a record is broken, or the folder cannot be written.
        """
        images = np.flatnonzero(self.classes >= 0)
        images = images[np.argsort(self.classes[images], kind="stable")]
        numbered = zip(images.tolist(), self.classes[images].tolist())
        with RecordWriter(folder, image_size=records.image_size) as writer:
            for image, label in track(numbered, len(images), "writing images"):
                writer.write(records.image(image)[0], label)


def make_plan(
    faces: EmbeddedFaces, images: Numbers, total: int, findings: Findings, actions: Namespace
) -> Plan:
    """Decide what becomes of each image.

    Args:
        faces: the images that could be embedded [n].
        images: their numbers in the record set [n].
        total: the number N of images in the record set.
        findings: what is wrong.
        actions: what is done about it: the options ``drop``, ``move``, ``merge``, ``drop_overlap``.
    """
    classes, reasons = faces.labels.copy(), np.full(len(faces.labels), "", _REASONS)
    moved = findings.of_kind("moved")
    if actions.drop or actions.move:
        numbers = [one.image for one in moved]
        classes[numbers] = [one.other if actions.move else _NO_CLASS for one in moved]
        reasons[numbers] = "moved"
    if actions.drop:
        junk = [one.image for one in findings.of_kind("junk")]
        classes[junk], reasons[junk] = _NO_CLASS, "junk"
    if actions.drop_overlap:
        is_out = np.zeros(len(classes), np.bool_)
        for overlap in findings.overlaps:
            is_out[[copy.found for copy in overlap.copies]] = True
            is_out |= np.isin(classes, [person.found for person in overlap.persons])
        is_out &= classes >= 0
        classes[is_out], reasons[is_out] = _NO_CLASS, "overlap"
    if actions.merge:
        of_class = np.arange(faces.num_classes)
        for group, _ in findings.merges:
            of_class[list(group)] = min(group)
        classes = np.where(classes >= 0, of_class[classes], _NO_CLASS)
    left = np.unique(classes[classes >= 0])
    every, why = np.full(total, _NO_CLASS, np.int64), np.full(total, "unreadable", _REASONS)
    every[images] = np.where(classes >= 0, np.searchsorted(left, classes), _NO_CLASS)
    why[images] = reasons
    return Plan(every, why, len(left))
