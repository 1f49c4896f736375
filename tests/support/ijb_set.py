"""Made sets in the form of InsightFace's release of IJB-B and IJB-C."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from data.align.similarity import TEMPLATE


class Sizes(NamedTuple):
    """How much a made set has; a template has a subject, of each person there are several."""

    faces: int = 60
    templates: int = 24
    people: int = 8
    pairs: int = 400


SMALL = Sizes()


class MadeSet(NamedTuple):
    """What the lists say, as arrays of the same names.

    A pair is two templates and a label; subjects are those of the templates 10, 13, 16 and so on.
    """

    folder: Path
    templates: np.ndarray
    media: np.ndarray
    scores: np.ndarray
    points: np.ndarray
    pairs: np.ndarray
    subjects: np.ndarray
    galleries: list[np.ndarray]
    probes: np.ndarray


def template_ids(sizes: Sizes) -> np.ndarray:
    return 10 + 3 * np.arange(sizes.templates)


def write_set(
    folder: Path, sizes: Sizes = SMALL, prefix: str = "ijbc", *, images: bool = False
) -> MadeSet:
    """Write lists of faces and pairs, tables of galleries and probes, and images of noise."""
    rng = np.random.default_rng(sizes.faces)
    ids = template_ids(sizes)
    # Every template has a face.
    templates = np.concatenate([ids, rng.choice(ids, sizes.faces - len(ids))])
    rng.shuffle(templates)
    media = rng.integers(0, 3, sizes.faces) + 7
    scores = rng.integers(100, 1000, sizes.faces) / 1000
    offsets = rng.integers(-2000, 2000, (sizes.faces, 5, 2)) / 1000
    points = np.round(0.4 * TEMPLATE + 5 + offsets, 3)
    subjects = np.arange(sizes.templates) % sizes.people
    chosen = rng.integers(0, sizes.templates, (sizes.pairs, 2))
    labels = subjects[chosen[:, 0]] == subjects[chosen[:, 1]]
    pairs = np.column_stack([ids[chosen], labels])
    # The first template of each person is in a gallery, all others are probes.
    firsts = np.arange(sizes.people)
    galleries = [firsts[: sizes.people // 2], firsts[sizes.people // 2 :]]
    probes = np.arange(sizes.people, sizes.templates)
    meta, numbers = folder / "meta", np.arange(1, sizes.faces + 1)
    meta.mkdir(parents=True)
    for name, columns, form in (
        ("name_5pts_score", (numbers, points.reshape(-1, 10), scores), "%d.png" + " %.3f" * 11),
        ("face_tid_mid", (numbers, templates, media), "%d.png %d %d"),
        ("template_pair_label", (pairs,), "%d %d %d"),
    ):
        np.savetxt(meta / f"{prefix}_{name}.txt", np.column_stack(columns), form)
    tables = ("gallery_S1", "gallery_S2") if prefix == "ijbb" else ("gallery_G1", "gallery_G2")
    for word, places in zip((*tables, "probe_mixed"), (*galleries, probes)):
        lines = ["TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID"]
        for place in places.tolist():
            # A line per image, of which a template has several.
            lines += [f"{ids[place]},{subjects[place]},img/{n}.png,7" for n in range(2)]
        (meta / f"{prefix}_1N_{word}.csv").write_text("\n".join(lines) + "\n")
    if images:
        (folder / "loose_crop").mkdir()
        for number in range(sizes.faces):
            cv2.imwrite(str(folder / "loose_crop" / f"{number + 1}.png"), noise(number))
    return MadeSet(folder, templates, media, scores, points, pairs, subjects, galleries, probes)


def noise(number: int) -> np.ndarray:
    """The image of a face, BGR, [60, 60, 3]."""
    return np.random.default_rng(number).integers(0, 256, (60, 60, 3), dtype=np.uint8)
