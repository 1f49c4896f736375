"""A record set of drawn faces, made on first use.

``make train`` on a machine without any data trains on this set, in the format and through the code
of real sets: faces of ``data.drawn.faces`` in ``train.rec``, and pairs of identities that are not
in training (``unseen.bin``). Several processes may ask for the set at once: one of a host makes it,
the others wait; the folder appears only when it is complete. If another set is asked for in the
same folder, it replaces the former, unless the folder holds a file that this program has not
written or that has changed since: no file of the user's own is ever removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from data.contents import Images, describe_file
from data.decoding import encode
from data.drawn.faces import Person, View, render
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from data.verification.pairs import draw_pairs
from runtime.errors import DataError
from runtime.files import as_data_error, open_kept, read_text, write_atomically

_VERIFICATION_IDENTITIES = 100
_VERIFICATION_PAIRS = 3000
_VERIFICATION_IMAGES = 15
_FOLDS = 10
_JPEG_QUALITY = 90
_DESCRIPTION = "synthetic.json"
# Written into the folder by the readers of the set.
_CACHES = ("train.idx.cache", "train.labels.cache")
# Raise it when the drawing changes, so that sets of the old kind are replaced.
_VERSION = 2
# The first number of every seed, so that no two uses share their random numbers.
_PERSON, _IMAGE = range(2)


@dataclass(frozen=True)
class DrawnFaces(Images):
    """The images of a set by their seeds: processors may round the pixels in several ways.

    ``image_size`` is height and width.
    """

    identities: int
    images_per_identity: int
    image_size: tuple[int, int]
    seed: int

    def __len__(self) -> int:
        return self.identities * self.images_per_identity

    @override
    def fingerprint(self) -> str:
        return f"drawn with seed {self.seed}, {self.image_size}, version {_VERSION}"


def ensure(root: Path, faces: DrawnFaces) -> Path:
    """Make the set of these faces unless the folder ``root`` holds it already; return ``root``.

    Raises:
        DataError: the folder holds other files, or cannot be written.
    """
    description = {"version": _VERSION, **vars(faces), "image_size": list(faces.image_size)}
    # The set takes the place of the folder, not that of a link to it.
    folder = Path(os.path.realpath(root))
    remedy = "choose a folder that can be written and has room"
    with as_data_error(f"the synthetic set cannot be made in {root}", remedy):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f".{folder.name}.lock"), "ab", opener=open_kept) as file:
            # One process at a time checks and makes the set.
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_complete(folder, description):
                _make(folder, faces, description)
    return root


def _make(folder: Path, faces: DrawnFaces, description: Mapping[str, Any]) -> None:
    """Write a set under another name, and give it that of the folder when it is complete."""
    partial = folder.with_name(f".{folder.name}.{os.uname().nodename}.part")
    shutil.rmtree(partial, ignore_errors=True)
    # Not through a link of this name.
    partial.mkdir()
    try:
        with RecordWriter(partial, image_size=faces.image_size) as writer:
            for label, images in enumerate(_draw_identities(faces, 0)):
                for image in images:
                    writer.write(image, label)
        _write_verification(partial, faces)
        files = {path.name: describe_file(path) for path in sorted(partial.iterdir())}
        text = json.dumps({**description, "files": files})
        write_atomically(partial / _DESCRIPTION, text.encode())
        # Without locks between hosts, another one may have made it meanwhile.
        if not _is_complete(folder, description):
            if folder.exists():
                shutil.rmtree(folder)
            partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_complete(folder: Path, description: Mapping[str, Any]) -> bool:
    """Return True if the folder holds the set of this description; if not, it may be replaced.

    Raises:
        DataError: it must not be replaced, because not all of its files are of a synthetic set.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads(read_text(folder / _DESCRIPTION))
        written = dict(found["files"])
    except (OSError, ValueError, TypeError, KeyError):
        raise DataError(
            f"{folder} exists and is no synthetic set; move it away or choose another folder"
        ) from None
    if all(found.get(name) == value for name, value in description.items()):
        return True
    for path in sorted(folder.iterdir()):
        name = path.name
        is_ours = name in (_DESCRIPTION, *_CACHES) or written.get(name) == describe_file(path)
        if path.is_symlink() or not path.is_file() or not is_ours:
            raise DataError(
                f"{path} is not part of a synthetic set as this program has written it, and "
                f"another set is to be made in {folder}; move it away or choose another folder"
            )
    return False


def _write_verification(folder: Path, training: DrawnFaces) -> None:
    """Write pairs of identities that follow those of the training set."""
    shown = replace(
        training, identities=_VERIFICATION_IDENTITIES, images_per_identity=_VERIFICATION_IMAGES
    )
    images = list(_draw_identities(shown, training.identities))
    pairs = draw_pairs(images, count=_VERIFICATION_PAIRS, folds=_FOLDS, seed=training.seed)
    encoded = [image for first, second, _ in pairs for image in (first, second)]
    write_bin(folder / "unseen.bin", encoded, [same for _, _, same in pairs])


def _draw_identities(faces: DrawnFaces, first: int) -> Iterator[list[bytes]]:
    """Yield the encoded images of each identity; ``first`` is the number of the first one.

    They depend on the numbers of the identity and of the image, and on the seed alone.
    """
    for number in range(first, first + faces.identities):
        person = Person(np.random.default_rng((_PERSON, faces.seed, number)))
        images = []
        for image in range(faces.images_per_identity):
            rng = np.random.default_rng((_IMAGE, faces.seed, number, image))
            rgb = render(person, View(rng), faces.image_size, rng)
            images.append(encode(rgb, lossless=False, quality=_JPEG_QUALITY))
        yield images
