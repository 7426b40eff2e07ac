"""The numbers that `harvester scale` asked for, where the jobs application has to start again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.errors import UsageError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    import ray

    from harvester.serve.deployments.scale import scaling
    from harvester.serve.deployments.scale.scaling import Scale

CONFIG = {"replicas": 2, "models": {"small": {"replicas": 1}}}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    told: list[tuple[Any, ...]] = []

    async def set_replicas(*given: Any) -> bool:
        told.append(given)
        return True

    monkeypatch.setattr(scaling, "set_replicas", set_replicas)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    return told


def scale_of(kept: Path) -> Scale:
    return Scale(parse_config(CONFIG, "test"), kept, cpu=True)


async def test_an_application_that_starts_again_knows_them(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    kept = tmp_path / "scale.json"
    first = scale_of(kept)
    assert (first.wanted(), first.wanted("small"), first.all_wanted("big")) == (2, 1, {"big": 2, "small": 1})
    assert await first(3, "small") == 1
    assert await first(1) == 2
    assert [number for _, _, number in asked] == [3, 1]
    again = scale_of(kept)
    assert (again.wanted(), again.wanted("small"), again.all_wanted("big")) == (1, 3, {"big": 1, "small": 3})
    assert again.bounds() == {"replicas": 1, "max_replicas": 1}


async def test_a_server_that_takes_over_returns_to_the_configured_ones(tmp_path: Path, asked: list[tuple[Any, ...]]) -> None:
    config = parse_config({"replicas": 2, "models": {"small": {"replicas": {"min": 1, "max": 4}}}}, "test")
    scale = Scale(config, tmp_path / "scale.json", cpu=True)
    await scale(3)
    await scale.reset()
    assert scale.bounds() == {"replicas": 2, "max_replicas": 2}
    assert [number for _, _, number in asked] == [3, 2], "a range is none of ours"
    await Scale(config, tmp_path / "none.json", cpu=True).reset()
    assert [number for _, _, number in asked] == [3, 2, 2], "a new application does not know what Serve has"


@pytest.mark.parametrize("text", ["", "{", "[1]", '[["gone", 4]]', '[[null, "two"]]'], ids=repr)
def test_a_file_that_says_nothing_leaves_the_configuration_s(tmp_path: Path, text: str) -> None:
    kept = tmp_path / "scale.json"
    kept.write_text(text, encoding="utf-8")
    assert (scale_of(kept).wanted(), scale_of(kept).wanted("small")) == (2, 1)


@pytest.mark.parametrize(("fewest", "fit"), [(0, 2), (1, 1)], ids=["one that may sleep", "one that keeps a replica"])
async def test_a_range_of_another_model_takes_the_room_of_its_fewest_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewest: int, fit: int
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    config = parse_config({"replicas": 1, "models": {"small": {"replicas": {"min": fewest, "max": 4}}}}, "test")
    scale = Scale(config, tmp_path / "scale.json", cpu=False)
    assert await scale(fit) == 1
    with pytest.raises(UsageError, match=f"replicas {fit + 1} do not fit this machine, which has room for {fit};"):
        await scale(fit + 1)
