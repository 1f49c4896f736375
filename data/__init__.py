"""Images and labels: record files, batches, drawn sets, verification sets, packing, inspecting."""

from runtime import environment

MAX_PIXELS = 1 << 26
"""The largest height times width of an image."""

# Before any module of this package imports OpenCV.
environment.prepare_opencv(MAX_PIXELS)
