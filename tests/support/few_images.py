"""``classify.py`` on few training images, and all validation images, of CIFAR-10's files.

Run as ``python -m tests.support.few_images COUNT OPTIONS...``. The files are of the real format
and length, which is what shall be read and counted; training on 50,000 images would take hours.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from runtime import environment

environment.prepare()

import classify  # noqa: E402
from data.images import cifar  # noqa: E402
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
    read = cifar.read
    few = replace(cifar.CIFAR10, files={**cifar.CIFAR10.files, "training": ("data_batch_1",)})
    cifar.SETS["cifar10"] = few

    def read_few(kind, folder, part):
        dataset = read(kind, folder, part)
        return FewImages(dataset, count) if part == "training" else dataset

    cifar.read = read_few
    return classify.main()


if __name__ == "__main__":
    run_program(main)
