"""Random tensors: other values in each call, so they are never folded, and never merged."""

from __future__ import annotations

from engine.ops import OpDef, register

for _name, _since in {
    "Bernoulli": 15,
    "Multinomial": 7,
    "RandomNormal": 1,
    "RandomNormalLike": 1,
    "RandomUniform": 1,
    "RandomUniformLike": 1,
}.items():
    register(OpDef(_name, _since, random=True))
