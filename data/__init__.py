"""Images and labels: record files, the loader, synthetic faces, the packer, verification sets."""

import os

MAX_PIXELS = 1 << 26
"""Of an image, in height times width."""

# Read while OpenCV is imported, by any module of this package. A file of a few bytes may announce
# an image of a billion pixels, OpenCV's own limit, and would get the memory for it.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
