"""A record set of drawn faces, made on first use.

``make train`` on a machine without any data has to train on something, in the format and through
the code that real sets take. So a set is drawn by ``data.drawn.faces``, packed into ``train.rec``,
and verified on identities that training never sees (``unseen.bin``). Several processes may ask at
once: one makes the set, the others wait; a set is either complete or not there. A set of another
kind is made anew in the same folder, unless there is a file in it that this program has not
written, or that has changed since: nothing of the user's own is ever removed.
"""

from __future__ import annotations

import fcntl
import json
import pickle
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

import cv2
import numpy as np

from data.drawn.faces import Person, draw_person, draw_view, render
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from data.verification.pairs import draw_pairs
from runtime import processors
from runtime.errors import DataError
from runtime.files import write_atomically

_VERIFICATION_IDENTITIES = 100
_VERIFICATION_PAIRS = 3000
_VERIFICATION_IMAGES = 15
_FOLDS = 10
_JPEG_QUALITY = 90
_DESCRIPTION = "synthetic.json"
_FILES = ("train.rec", "train.idx", "property", "unseen.bin")
# Written into the folder by whoever reads the set.
_CACHES = ("train.idx.cache", "train.labels.cache")
# Raise it when the drawing changes, so that sets of the old kind are made anew.
_VERSION = 2
# The first number of every seed, so that no two uses share their random numbers.
_PERSON, _IMAGE = range(2)
# Fewer images are drawn before another process has started.
_WORTH_A_PROCESS = 250
_CHUNK = 1 << 20


class _Job(NamedTuple):
    """Which images to draw: ``images`` of each of the identities ``first … stop - 1``."""

    first: int
    stop: int
    images: int
    height: int
    width: int
    seed: int


def ensure(
    root: Path,
    *,
    identities: int = 400,
    images_per_identity: int = 30,
    image_size: tuple[int, int] = (112, 112),
    seed: int = 0,
) -> Path:
    """Make the set if it is not there yet, or is another one than asked for.

    Args:
        root: the folder to make; it gets ``train.rec``, ``train.idx``, ``property`` and
            ``unseen.bin``.
        identities: the number of identities to train on.
        images_per_identity: images of each.
        image_size: height and width.
        seed: of everything that is drawn.

    Returns:
        ``root``.

    Raises:
        DataError: the folder holds something else, or cannot be written.
    """
    description = {
        "version": _VERSION,
        "identities": identities,
        "images_per_identity": images_per_identity,
        "image_size": list(image_size),
        "seed": seed,
    }
    # The set takes the place of the folder, not that of a link to it.
    folder = root.resolve()
    with _locked(folder):
        if not _is_there(folder, description):
            partial = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(partial, ignore_errors=True)
            try:
                _write_training(partial, identities, images_per_identity, image_size, seed)
                _write_verification(partial, identities, image_size, seed)
                files = {path.name: _checksum(path) for path in sorted(partial.iterdir())}
                text = json.dumps({**description, "files": files})
                write_atomically(partial / _DESCRIPTION, text.encode())
                _remove_former(folder)
                partial.replace(folder)
            except OSError as error:
                shutil.rmtree(partial, ignore_errors=True)
                raise _unwritable(root, error) from None
    return root


def _unwritable(root: Path, error: OSError) -> DataError:
    return DataError(
        f"the synthetic set cannot be made in {root}: {error.strerror}; choose a folder that "
        "can be written and has room"
    )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Let one process at a time look at the set and make it."""
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        lock = root.with_name(f".{root.name}.lock").open("w")
    except OSError as error:
        raise _unwritable(root, error) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_there(root: Path, description: Mapping[str, Any]) -> bool:
    """Whether the set is there.

    Raises:
        DataError: what is there instead is not this program's to remove.
    """
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    found = _described(root)
    if all(found.get(name) == value for name, value in description.items()):
        return True
    foreign = _foreign_file(root, found.get("files"))
    if foreign is not None:
        raise DataError(
            f"{foreign} is not part of a synthetic set as this program has written it, and another "
            f"set is to be made in {root}; move it away or choose another folder"
        )
    return False


def _described(root: Path) -> dict[str, Any]:
    """What the description in a folder says.

    Raises:
        DataError: there is none.
    """
    try:
        found = json.loads((root / _DESCRIPTION).read_text())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise DataError(
            f"{root} exists and is no synthetic set; move it away or choose another folder"
        )
    return found


def _foreign_file(root: Path, checksums: Any) -> Optional[Path]:
    """A file in a folder that is not as this program has written it, if there is any.

    Args:
        root: the folder.
        checksums: those of the files when they were written. Earlier versions of this program
            have left none: their names have to do.
    """
    for path in sorted(root.iterdir()):
        if path.is_symlink() or not path.is_file():
            return path
        if path.name in (_DESCRIPTION, *_CACHES):
            continue
        if isinstance(checksums, dict):
            if checksums.get(path.name) != _checksum(path):
                return path
        elif path.name not in _FILES:
            return path
    return None


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _remove_former(root: Path) -> None:
    """Remove a former set file by file, so that what has come meanwhile stays."""
    if root.exists():
        for name in (*_FILES, *_CACHES, _DESCRIPTION):
            (root / name).unlink(missing_ok=True)
        root.rmdir()


def _write_training(
    folder: Path, identities: int, images_per_identity: int, size: tuple[int, int], seed: int
) -> None:
    with RecordWriter(folder, image_size=size) as writer:
        drawn = _draw_identities(range(identities), images_per_identity, size, seed)
        for label, images in enumerate(drawn):
            for image in images:
                writer.write(image, label)


def _write_verification(folder: Path, first: int, size: tuple[int, int], seed: int) -> None:
    """Write pairs of the identities from ``first`` on, which are not in the training set."""
    numbers = range(first, first + _VERIFICATION_IDENTITIES)
    images = list(_draw_identities(numbers, _VERIFICATION_IMAGES, size, seed))
    counts = [_VERIFICATION_IMAGES] * _VERIFICATION_IDENTITIES
    pairs = draw_pairs(counts, count=_VERIFICATION_PAIRS, folds=_FOLDS, seed=seed)
    places = [place for pair in pairs for place in (pair.first, pair.second)]
    encoded = [images[identity][image] for identity, image in places]
    write_bin(folder / "unseen.bin", encoded, [pair.same for pair in pairs])


def _draw_identities(
    numbers: range, images: int, size: tuple[int, int], seed: int
) -> Iterator[list[bytes]]:
    """Yield the encoded images of each identity, which depend on its number and the seed only."""
    parts = min(processors.available(), len(numbers) * images // _WORTH_A_PROCESS)
    job = _Job(numbers.start, numbers.stop, images, *size, seed)
    drawn = _draw_in_processes(job, parts) if parts > 1 else _draw_part(job, 0, 1)
    for _ in numbers:
        yield list(islice(drawn, images))


def _draw_part(job: _Job, part: int, parts: int) -> Iterator[bytes]:
    """Yield every ``parts``-th image of a job, from image ``part`` on."""
    for number in range(job.first, job.stop):
        person = draw_person(np.random.default_rng((_PERSON, job.seed, number)))
        skipped = (part - (number - job.first) * job.images) % parts
        for image in range(skipped, job.images, parts):
            yield _draw_image(person, (_IMAGE, job.seed, number, image), (job.height, job.width))


def _draw_image(person: Person, seeds: tuple[int, ...], size: tuple[int, int]) -> bytes:
    rng = np.random.default_rng(seeds)
    bgr = cv2.cvtColor(render(person, draw_view(rng), size, rng), cv2.COLOR_RGB2BGR)
    done, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    assert done
    return encoded.tobytes()


def _draw_in_processes(job: _Job, parts: int) -> Iterator[bytes]:
    """Yield all images of a job in order, drawn by several processes.

    Drawing is Python work, which threads would do one after the other. The processes are plain
    programs that write to pipes, not forks: MXNet and Horovod may already run here, and a pipe
    that nobody reads any more ends its writer, so that none is left behind.
    """
    command = [sys.executable, "-m", "data.drawn.face_set"]
    root = Path(__file__).resolve().parents[2]
    with ExitStack() as stack:
        pipes: list[IO[bytes]] = []
        for part in range(parts):
            arguments = [str(number) for number in (*job, part, parts)]
            process = subprocess.Popen(command + arguments, stdout=subprocess.PIPE, cwd=root)
            stack.enter_context(process)
            stack.callback(process.terminate)
            assert process.stdout is not None
            pipes.append(process.stdout)
        for number in range((job.stop - job.first) * job.images):
            yield pickle.load(pipes[number % parts])


def _main() -> None:
    """Draw one part of a job, for ``_draw_in_processes``."""
    cv2.setNumThreads(0)
    *job, part, parts = (int(word) for word in sys.argv[1:])
    for image in _draw_part(_Job(*job), part, parts):
        pickle.dump(image, sys.stdout.buffer)


if __name__ == "__main__":
    _main()
