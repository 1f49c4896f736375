"""Interface of record sets, one or several: images of faces and their identities.

In one array, the identities of a billion images would take 4 GB of every rank. So they stay in the
caches of the files, which are mapped: one after another where all are looked at once, or each when
it is first looked at, where any of them may be needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Union

import numpy as np
from numpy.typing import NDArray

from data.image_interface import EncodedImages

Labels = NDArray[np.int32]
"""The identities of some images; -1 where an image is unreadable."""


class LabeledRecords(EncodedImages, Protocol):
    """Images of faces and their identities.

    Attributes:
        path: of the set, for messages.
        num_classes: the number of identities.
        image_size: height and width of the images, in pixels.
    """

    path: Union[Path, str]
    image_size: tuple[int, int]

    def label_chunks(self) -> Iterator[tuple[int, Labels]]:
        """Yield all labels in order: the index of the first image, and those of some images.

        Raises:
            DataError: a label is not one of the classes.
        """

    def labels_between(self, start: int, stop: int) -> Labels:
        """Return the labels of some images, of which there is one; their arrays stay mapped.

        Raises:
            DataError: a label is not one of the classes.
        """
