"""Images and labels: record files, batches, drawn sets, verification sets, packing, inspecting."""

import os

MAX_PIXELS = 1 << 26
"""The largest height times width of an image."""

# OpenCV reads these while it is imported. By default it allocates memory for a billion pixels if a
# file of a few bytes announces them, and prints lines of its own beside our error messages.
os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
