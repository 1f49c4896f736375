"""Decoding: the one place where encoded bytes become pixels.

MXNet's networks want RGB while OpenCV decodes to BGR unless told otherwise, and OpenCV answers
broken images sometimes with None and sometimes with an exception of its own. Everybody who needs
pixels asks here.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from data.recordio import BrokenRecordError, Payload

Image = NDArray[np.uint8]


def decode_rgb(payload: Payload) -> Image:
    """Decode a JPEG or PNG.

    Returns:
        uint8 ``[height, width, 3]``, RGB.

    Raises:
        BrokenRecordError: the bytes are no image.
    """
    try:
        image: Image | None = cv2.imdecode(
            np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        )
    except cv2.error:
        image = None
    if image is None:
        raise BrokenRecordError("the image cannot be decoded")
    return image
