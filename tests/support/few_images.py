"""``classify.py`` on few training images, and all validation images, of CIFAR-10's files.

Run as ``python -m tests.support.few_images COUNT OPTIONS...``. The files are of the real format
and length, which is what shall be read and counted; training on 50,000 images would take hours.
"""

from __future__ import annotations

import sys

from runtime import environment

environment.prepare()

import classify  # noqa: E402
from data.images import cifar10  # noqa: E402
from data.images.image_set import ImagesInMemory  # noqa: E402
from runtime.errors import run_program  # noqa: E402


class FewImages:
    """The first images of a set."""

    def __init__(self, whole: ImagesInMemory, count: int) -> None:
        self._whole, self._count = whole, count
        self.num_classes = whole.num_classes

    def __len__(self) -> int:
        return self._count

    def decoded(self, index: int):
        return self._whole.decoded(index)


def main() -> int:
    count = int(sys.argv.pop(1))
    read = cifar10.read
    cifar10._FILES["training"] = ("data_batch_1",)

    def read_few(folder, part):
        dataset = read(folder, part)
        return FewImages(dataset, count) if part == "training" else dataset

    cifar10.read = read_few
    return classify.main()


if __name__ == "__main__":
    run_program(main)
