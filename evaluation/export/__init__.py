"""A trained network for other programs: ONNX, and PyTorch under arcface_torch's names."""
