"""The only package that talks to wgpu: devices, plan execution, sessions."""
