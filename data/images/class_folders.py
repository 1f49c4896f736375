"""Images in a folder per class, as ImageNet is unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data.identities import is_image
from data.images.decoding import FILE_ENDINGS
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError


class ClassFolders:
    """The images below a folder, in the order of their names; an ``EncodedSet``.

    Attributes:
        classes: the names of the folders; their places are the labels.
        num_classes: how many there are.
    """

    def __init__(self, folder: Path, classes: Sequence[str] | None = None) -> None:
        """List the files.

        Args:
            folder: holds a folder per class.
            classes: the names in the order of their labels; those that are there unless given.

        Raises:
            DataError: there are no images, or a class that is not one of ``classes``.
        """
        found = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.classes = found if classes is None else list(classes)
        self.num_classes = len(self.classes)
        unknown = sorted(set(found) - set(self.classes))
        if unknown:
            raise DataError(
                f"{folder / unknown[0]} is a class without training images; remove it, or add them"
            )
        labels = {name: label for label, name in enumerate(self.classes)}
        self._files = [
            (path, labels[name])
            for name in found
            for path in sorted((folder / name).iterdir())
            if is_image(path.name)
        ]
        if not self._files:
            raise DataError(
                f"{folder} holds no folders with images ({', '.join(FILE_ENDINGS)}); it needs "
                "one folder per class"
            )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._files)

    def image(self, index: int) -> tuple[Payload, int]:
        """See ``EncodedSet``."""
        path, label = self._files[index]
        try:
            return path.read_bytes(), label
        except OSError as error:
            raise BrokenRecordError(f"{path} cannot be read: {error.strerror}") from None

    def where(self, index: int) -> str:
        """See ``EncodedSet``."""
        return str(self._files[index][0])
