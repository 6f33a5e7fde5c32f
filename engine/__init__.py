"""onnx-wgpu: runs ONNX models as WGSL compute shaders, and NumPy for the rest."""
