"""A few updates on a device; prints a checksum of each number. Started by the test.

MXNet reads which engine to use when it is imported, so each engine has a process of its own.
"""

from __future__ import annotations

import json
import sys
import zlib

from tests.device.updates import DEVICE, ClassifierUpdates, Faces, FaceUpdates

UPDATES = 4


def main() -> None:
    """Print the losses, and checksums of the arrays, of the face runs named and a classifier."""
    found = {}
    for name in sys.argv[1:]:
        loss, optimizer = name.split("-")
        faces = FaceUpdates(Faces(loss, optimizer), DEVICE)
        found[name] = faces.train(UPDATES), _checksums(faces)
    classifier = ClassifierUpdates(DEVICE)
    found["classifier"] = classifier.train(UPDATES), _checksums(classifier)
    print(json.dumps(found))


def _checksums(run: FaceUpdates | ClassifierUpdates) -> dict[str, int]:
    return {name: zlib.crc32(values.tobytes()) for name, values in run.arrays().items()}


if __name__ == "__main__":
    main()
