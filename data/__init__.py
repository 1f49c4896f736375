"""Images and labels: record files, the loader, synthetic faces, the packer, verification sets."""

import os

MAX_PIXELS = 1 << 26
"""Of an image, in height times width."""

# Read while OpenCV is imported, by any module of this package. A file of a few bytes may announce
# an image of a billion pixels, OpenCV's own limit, and would get the memory for it.
# Who asks for pixels says in one line what is wrong with a file; OpenCV would add lines of its own.
os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
