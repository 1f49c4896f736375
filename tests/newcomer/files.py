"""The files that the commands of the README take for granted: ``python -m tests.newcomer.files``.

Arguments: the folder in which they are made, and that of the real data (``TOOLKIT_DATA``). Faces
and MNIST are real; CIFAR-10 and ImageNet are drawn, in the format of their files.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import cv2

from data.drawn.patterns import DrawnImages
from data.records.writer import RecordWriter

_CIFAR_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_IMAGES_PER_CIFAR_FILE, _DRAWN, _CLASSES = 10_000, 500, 8


def main() -> None:
    folder, real = Path(sys.argv[1]), Path(sys.argv[2])
    faces = folder / "FACES"
    if not faces.exists():
        unpacked = folder / "lfw.part"
        with tarfile.open(real / "lfw_112x112.tar.gz") as archive:
            archive.extractall(unpacked)
        (lfw,) = unpacked.iterdir()
        lfw.rename(faces)
        unpacked.rmdir()
        (folder / "LFW_FOLDER").symlink_to("FACES")
    shutil.copy(real / "lfw_pairs.txt", folder / "pairs.txt")
    shutil.copytree(real / "mnist", folder / "mnist", dirs_exist_ok=True)
    _write_cifar(folder / "cifar-10")
    for name, count in (("train.rec", 64), ("val.rec", 16)):
        _write_records(folder / name, count)


def _write_cifar(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    drawn = DrawnImages("training", num_classes=10, count=_DRAWN, shape=(32, 32, 3), seed=1)
    rows = (
        bytes([int(label)]) + image.transpose(2, 0, 1).tobytes()
        for image, label in map(drawn.decoded, range(_DRAWN))
    )
    content = b"".join(rows) * (_IMAGES_PER_CIFAR_FILE // _DRAWN)
    for name in _CIFAR_FILES:
        (folder / f"{name}.bin").write_bytes(content)


def _write_records(path: Path, count: int) -> None:
    """Write a record file of the first few classes: all 1,000 would take long to draw."""
    shape = (256, 256, 3)
    drawn = DrawnImages("training", num_classes=_CLASSES, count=count, shape=shape, seed=1)
    with RecordWriter(path, image_size=shape[:2]) as writer:
        for index in sorted(range(count), key=lambda index: index % _CLASSES):
            encoded = cv2.imencode(".jpg", drawn.decoded(index)[0])[1].tobytes()
            writer.write(encoded, index % _CLASSES)
    path.with_name("property").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
