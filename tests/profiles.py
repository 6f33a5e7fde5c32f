"""Device profiles with round figures."""

from __future__ import annotations

import dataclasses

from engine.rates import CpuRates, DeviceProfile, GpuRates


def round_profile(name: str = "round figures", **figures: int) -> DeviceProfile:
    """A profile in which nothing takes time but what `figures` say; rates are 10**15 a second."""
    parts = []
    for kind in (GpuRates, CpuRates):
        fields = [f.name for f in dataclasses.fields(kind)]
        default = {f: 10**15 if f.endswith("_per_s") else 0 for f in fields}
        given = {f: figures[f] for f in fields if f in figures}
        parts.append(kind(**{**default, **given}))
    unknown = figures.keys() - {f.name for p in parts for f in dataclasses.fields(p)}
    if unknown:
        raise TypeError(f"a profile has no figures {sorted(unknown)}")
    return DeviceProfile(name, *parts)


def changed(profile: DeviceProfile, **figures: int) -> DeviceProfile:
    """`profile` with other figures, of the GPU or of the CPU."""
    names = {f.name for f in dataclasses.fields(GpuRates)}
    gpu = {k: v for k, v in figures.items() if k in names}
    cpu = {k: v for k, v in figures.items() if k not in names}
    return dataclasses.replace(
        profile,
        gpu=dataclasses.replace(profile.gpu, **gpu),
        cpu=dataclasses.replace(profile.cpu, **cpu),
    )
