"""Targets by name: the baseline, all that the adapter offers, and which is the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import DeviceError
from engine.runtime import cache, targets
from engine.runtime.device import Device, choose_adapter, open_device
from engine.runtime.targets import VARIABLE
from engine.target import Target

pytestmark = pytest.mark.gpu


def test_the_baseline_asks_for_no_features() -> None:
    device = open_device(target="baseline")
    assert device.target == Target.baseline()
    assert "subgroup" not in device.wgpu.features


def test_the_adapter_offers_at_least_the_baseline() -> None:
    offered = open_device(target="adapter").target
    baseline = Target.baseline()
    for name in Target.limit_names():
        least, have = getattr(baseline, name), getattr(offered, name)
        assert have <= least if name.startswith("min_") else have >= least
    info = choose_adapter()
    assert ("subgroups" in offered.features) == ("subgroup" in info.features)
    assert ("shader-f16" in offered.features) == ("shader-f16" in info.features)


def test_software_adapters_have_one_subgroup_size() -> None:
    info = choose_adapter()
    if info.kind != "CPU" or "subgroup" not in info.features:
        pytest.skip("the adapter is no software adapter with subgroups")
    assert open_device(target="adapter").target.subgroup_size in (4, 8, 16, 32)


def test_a_subgroup_size_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    measured: list[str] = []
    monkeypatch.setattr(targets, "_probe", lambda name, adapter: measured.append(name) or 16)
    for _ in range(2):
        targets._probed.cache_clear()
        assert targets._probed("one adapter", targets._Adapter(None)) == 16
        cache.flush(wait=True)
    assert targets._probed("another", targets._Adapter(None)) == 16
    targets._probed.cache_clear()
    assert measured == ["one adapter", "another"]


def test_the_default_is_the_adapter_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE)
    assert open_device() is open_device(target="adapter")
    monkeypatch.setenv(VARIABLE, "baseline")
    assert open_device() is open_device(target="baseline")


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(DeviceError, match="baseline, adapter"):
        open_device(target="fastest")


def test_features_are_requested_by_the_names_that_wgpu_has() -> None:
    info = choose_adapter()
    if "subgroup" not in info.features:
        pytest.skip("the adapter has no subgroups")
    device = Device(info, Target(features=frozenset({"subgroups"})))
    assert "subgroup" in device.wgpu.features
    device.close()
