"""Clean a set of faces with a trained network: what is wrong in it, and a new set without that.

    python -m evaluation.clean datasets/faces --model models/run/model,0 --out datasets/faces_clean

Finds images with a wrong label, classes that are one identity, and what the set has in common with
verification sets; ``docs/cleaning.md`` says how. The set itself is never changed.

The findings say what looks wrong; the user says what is to be done about it. From both follows what
becomes of each image: a table, which is written whether or not a new set is.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from data.verification.bin_file import read_bin
from data.worker_threads import add_workers, track
from evaluation.clean.faces import EmbeddedFaces, EmbeddingFile, Numbers
from evaluation.clean.findings import COPY, MARGIN, Findings, find_all
from evaluation.clean.report import Report, file_stem
from evaluation.options import add_network, check_names, cosine
from runtime.command_line import Parser, positive_integer
from runtime.errors import ConfigError, DataError, is_launched, print_line, run_stoppable
from runtime.files import as_data_error, new_folder, read_file, write_atomically

# By their names in the findings: the option, and its help.
_COSINES = {
    "own": ("--own-cosine", "images below this with their class are far from it (at FAR 0.01)"),
    "agree": ("--agree-cosine", "images from this on agree (at FAR 0.001)"),
    "home": ("--home-cosine", "another class as near as this claims an image (5%% by chance)"),
    "margin": ("--margin", f"and is nearer than the own class by this ({MARGIN})"),
    "merge": ("--merge-cosine", "classes as near as this are one (one pair by chance)"),
    "overlap": ("--overlap-cosine", "a class as near as this is a person of a verification set"),
    "copy": ("--copy-cosine", f"an image as near as this is a copy ({COPY})"),
}

_NO_CLASS = -1
_REASONS = "<U10"


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.clean",
        description="Find wrong labels, identities that are in a set twice, and overlap with "
        "verification sets, and write a new set without them. Without --out, only the report.",
    )
    add = parser.add_argument
    add("path", type=Path, help="a .rec file, or a folder with one; it is not changed")
    out_help = "the folder for the new set; an existing one has to be empty"
    add("--out", type=Path, metavar="DIR", help=out_help)
    add("--dry-run", action="store_true", help="write the report, and no new set in any case")
    report_help = "the folder for the report (%(default)s)"
    add("--report", type=Path, default=Path("cleaning"), metavar="DIR", help=report_help)
    features_help = (
        "embeddings of the set, and of the verification sets, that python -m evaluation.embed has "
        "written, in place of --model"
    )
    add("--features", type=Path, metavar="FILE.npy", help=features_help)
    verification_help = "look for the people and images of these sets, too"
    add("--verification", nargs="+", type=Path, default=[], metavar="FILE.bin",
        help=verification_help)  # fmt: skip
    switch = argparse.BooleanOptionalAction
    drop_help = "leave out images with a wrong label; the default, --no-drop keeps them"
    add("--drop", action=switch, default=True, help=drop_help)
    move_help = "give images that another class claims to that class, instead of leaving them out"
    add("--move", action="store_true", help=move_help)
    add("--merge", action="store_true", help="make one class of those that are one identity")
    overlap_help = "leave out the identities and the images of the verification sets"
    add("--drop-overlap", action="store_true", help=overlap_help)
    for name, (option, said) in _COSINES.items():
        add(option, dest=f"{name}_cosine", type=cosine, metavar="FLOAT", help=said)
    sheets_help = "at most so many sheets of each finding (%(default)s)"
    add("--sheets", type=positive_integer, default=5, metavar="N", help=sheets_help)
    add_network(parser, required=False)
    add_workers(parser)
    options = parser.parse_args(argv)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    if (options.model is None) == (options.features is None):
        raise ConfigError("name either a network, --model, or embeddings, --features")
    if options.model is not None and is_launched():
        raise ConfigError(
            "evaluation.clean runs in one process; have the ranks embed the set "
            "(evaluation.embed), and name what they write as --features"
        )
    if options.drop_overlap and not options.verification:
        raise ConfigError("--drop-overlap needs verification sets; name them with --verification")
    check_names("--verification", [file_stem(path.stem) for path in options.verification])


def _check_places(options: argparse.Namespace, records: RecordSet) -> None:
    """Refuse a new set in the old one, and a report in the new set, which appears at the end."""
    if options.out is None:
        return
    # Path.resolve ends in a RuntimeError at a link to itself.
    paths = map(os.path.realpath, (records.path.parent, options.out, options.report))
    source, out, report = map(Path, paths)
    for option, place, taken in (("--out", out, source), ("--report", report, out)):
        if taken in (place, *place.parents):
            raise ConfigError(f"{option} {place} is, or lies in, {taken}; choose another place")


def _embed(options: argparse.Namespace, records: RecordSet) -> Path:
    """Compute the embeddings of all sets; return their file."""
    # Here, because rooms meet in programs only.
    from evaluation.embed import embed
    from parallel.world import LoneWorld

    out = str(options.report / "features")
    inputs = [str(records.path), *map(str, options.verification)]
    own = {"inputs": inputs, "out": out, "skip_broken": True}
    fixed = {"raw": False, "safetensors": False, "resize": False}
    embed(argparse.Namespace(**{**vars(options), **own, **fixed}), LoneWorld())
    return Path(f"{out}.npy")


def make_plan(
    faces: EmbeddedFaces, total: int, findings: Findings, actions: argparse.Namespace
) -> tuple[Numbers, NDArray[np.str_]]:
    """Decide what becomes of each image.

    Returns the class of each in the new set, -1 if it is left out, and why it is left out or has
    another class; empty for others.

    Args:
        faces: the images that could be embedded [n].
        total: the number N of images in the record set.
        findings: what is wrong.
        actions: what is done about it: the options ``drop``, ``move``, ``merge``, ``drop_overlap``.
    """
    classes, reasons = faces.labels.copy(), np.full(len(faces.labels), "", _REASONS)
    for one in findings.wrong:
        is_moved = one.kind == "moved" and actions.move
        if is_moved or (actions.drop and one.kind != "unsure"):
            classes[one.image] = one.other if is_moved else _NO_CLASS
            reasons[one.image] = one.kind
    if actions.drop_overlap:
        is_out = np.zeros(len(classes), np.bool_)
        for overlap in findings.overlaps:
            is_out[[copy.probe for copy in overlap.copies]] = True
            is_out |= np.isin(classes, [person.probe for person in overlap.persons])
        is_out &= classes >= 0
        classes[is_out], reasons[is_out] = _NO_CLASS, "overlap"
    if actions.merge:
        of_class = np.arange(faces.num_classes)
        for group, _ in findings.merges:
            of_class[list(group)] = min(group)
        classes = np.where(classes >= 0, of_class[classes], _NO_CLASS)
    left = np.unique(classes[classes >= 0])
    every, why = np.full(total, _NO_CLASS, np.int64), np.full(total, "unreadable", _REASONS)
    every[faces.images] = np.where(classes >= 0, np.searchsorted(left, classes), _NO_CLASS)
    why[faces.images] = reasons
    return every, why


def _clean(options: argparse.Namespace, records: RecordSet, hidden: Optional[Path]) -> None:
    """Find, report, and write the new set into a folder if there is one."""
    pairs = [read_bin(path) for path in options.verification]
    file = EmbeddingFile(options.features or _embed(options, records))
    faces = file.faces_of(records)
    targets = [(one, file.rows_of(one)) for one in pairs]
    every = {name: getattr(options, f"{name}_cosine") for name in _COSINES}
    given = {name: cosine for name, cosine in every.items() if cosine is not None}
    findings = find_all(faces, targets, given)
    classes, reasons = make_plan(faces, len(records), findings, options)
    counts = Counter(reasons[classes < 0].tolist())
    out = ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "none"
    summary = {
        "set": str(records.path),
        "images": f"{len(records):,} of {len(faces.present):,} identities",
        "cannot be judged": f"{int((faces.sizes == 1).sum()):,} are alone in their class",
        **{option: f"{findings.limits[name]:.3f}" for name, (option, _) in _COSINES.items()},
        "left out": out,
        "new set": f"{(classes >= 0).sum():,} images of {classes.max() + 1:,} identities",
    }
    report = Report(options.report, records, faces, findings, options.sheets)
    lines = report.write(summary, classes, reasons.tolist())
    for line in (*(f"{name:<18}{value}" for name, value in summary.items()), *lines):
        print_line(line)
    if hidden is not None:
        _write_set(records, classes, hidden)


def _write_set(records: RecordSet, classes: Numbers, folder: Path) -> None:
    """Write the new set; the images of a class stay in their order, byte for byte.

    Raises:
        DataError: nothing is left, a record is broken, or a file cannot be read or written.
    """
    if classes.max() < 0:
        raise DataError(f"nothing of {records.path} is left; choose other thresholds or actions")
    images = np.flatnonzero(classes >= 0)
    images = images[np.argsort(classes[images], kind="stable")]
    numbered = zip(images.tolist(), classes[images].tolist())
    with RecordWriter(folder, image_size=records.image_size) as writer:
        for image, label in track(numbered, len(images), "writing images"):
            writer.write(records.image(image)[0], label)
    for path in sorted(records.path.parent.glob("[!.]*.bin")):
        with as_data_error(f"{path}, of which the new set needs a copy", "mend or remove it"):
            write_atomically(folder / path.name, read_file(path))


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Clean what the command line names."""
    options = _parse(argv)
    records = RecordSet(options.path)
    _check_places(options, records)
    if options.out is None or options.dry_run:
        _clean(options, records, None)
        return
    with new_folder(options.out) as hidden:
        _clean(options, records, hidden)
    print_line(f"{options.out}: the new set")


if __name__ == "__main__":
    run_stoppable(main)
