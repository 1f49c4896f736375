"""A trained network for other programs: as ONNX, and for PyTorch under arcface_torch's names."""
