"""Which file has the latency model of a deployment, and when the engine core writes it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.core import reporting
from harvester.engine.core.profile import Profile
from harvester.engine.core.reporting import SAVE_S, SAVE_STEPS, Reporting
from harvester.engine.core.steps import Step
from harvester.engine.launch import profiles
from harvester.engine.launch.profiles import profile_path
from harvester.engine.shared.settings import Settings
from harvester.engine.shared.state import Count, Field, SharedState
from harvester.model_config import CheckpointConfig, ScheduleConfig, ShareConfig, SloConfig
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.model.prediction import LengthPredictor
from jobs.hint import PROFILE, VERIFY

ENGINE = SimpleNamespace(
    parallel_config=SimpleNamespace(pipeline_parallel_size=1, tensor_parallel_size=1),
    speculative_config=None,
    device_config=SimpleNamespace(device_type="cpu"),
)


class Kept:
    """In the place of a `Profile`: counts how often it is written, which takes until `is_saving` is cleared."""

    def __init__(self) -> None:
        self.model, self.saves, self.is_saving = LatencyModel(), 0, False

    def save(self) -> None:
        self.saves += 1


class World:
    def __init__(self, shared: SharedState) -> None:
        self.shared, self.profile, self.now_s = shared, Kept(), 0.0
        self.time: Any = SimpleNamespace(monotonic=lambda: self.now_s)
        self.report: Reporting

    def step(self, number: int, now_s: float) -> int:
        """How often the file was written when this step was learnt from."""
        self.now_s = now_s
        self.report.learnt(self.profile, Step(number, None, 1, False, 0.0, 0.0), LengthPredictor(), 1.0)  # type: ignore[arg-type]
        return self.profile.saves


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    shared = SharedState.make()
    world = World(shared)
    monkeypatch.setattr(reporting, "time", world.time)
    settings = Settings(ShareConfig(), SloConfig(), ScheduleConfig(), None, None, CheckpointConfig())
    world.report = Reporting(settings, ENGINE, shared)
    yield world
    shared.remove()


def test_the_file_is_written_after_enough_steps_and_enough_time(world: World) -> None:
    assert world.step(SAVE_STEPS - 1, SAVE_S) == 0
    assert world.step(SAVE_STEPS + 20, SAVE_S - 1.0) == 0
    assert world.step(SAVE_STEPS + 40, SAVE_S) == 1
    assert world.step(2 * SAVE_STEPS + 39, 3 * SAVE_S) == 1
    assert world.step(2 * SAVE_STEPS + 60, 3 * SAVE_S) == 2


def test_the_file_is_written_once_when_the_front_end_asks(world: World) -> None:
    world.shared[Field.SAVE_PROFILE] = 1
    assert world.step(1, 0.0) == 1
    assert world.step(2, 0.0) == 1
    assert world.shared[Field.SAVED_PROFILE] == 1


def test_the_front_end_is_told_once_the_file_is_written_and_what_it_asked_meanwhile_is_written_after_it(world: World) -> None:
    world.shared[Field.SAVE_PROFILE] = 1
    world.step(1, 0.0)
    world.profile.is_saving = True
    world.shared[Field.SAVE_PROFILE] = 2
    assert world.step(2, 0.0) == 1, "one at a time"
    assert world.shared[Field.SAVED_PROFILE] == 0
    world.profile.is_saving = False
    assert world.step(3, 0.0) == 2
    assert world.shared[Field.SAVED_PROFILE] == 1
    world.step(4, 0.0)
    assert world.shared[Field.SAVED_PROFILE] == 2


def until_written(profile: Profile) -> None:
    while profile.is_saving:
        time.sleep(0.001)


def test_a_folder_that_does_not_answer_holds_up_no_step(world: World, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile = Profile(path)
    profile.model.observe(StepLoad.decode(100), 0.01)
    pipe = path.with_name(f".profile.json.{os.getpid()}")  # the file that is written first: here a write waits for a reader
    os.mkfifo(pipe)
    world.shared[Field.SAVE_PROFILE] = 1
    for number in range(1, 40):
        world.report.learnt(profile, Step(number, None, 1, False, 0.0, 0.0), LengthPredictor(), 1.0)
        profile.model.observe(StepLoad.decode(200), 0.02)
    assert profile.is_saving
    assert world.shared[Field.SAVED_PROFILE] == 0
    assert json.loads(pipe.read_text())["steps"] == 1, "the model as it was when the save began"
    until_written(profile)
    world.report.learnt(profile, Step(40, None, 1, False, 0.0, 0.0), LengthPredictor(), 1.0)
    assert world.shared[Field.SAVED_PROFILE] == 1
    assert path.exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"model": "/run2/checkpoint-500"}, id="another folder of the same name"),
        pytest.param({}, {"model": "org/checkpoint-500"}, id="the hub's"),
        pytest.param({}, {"name": "canary"}, id="another name"),
        pytest.param({}, {"revision": "v2"}, id="another revision"),
        pytest.param({}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, id="with a drafter"),
        pytest.param({"revision": "v1"}, {"revision": "v2"}, id="of two revisions"),
    ],
)
def test_another_model_has_another_file(before: dict[str, Any], after: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "device_name", lambda: "cpu x2")

    def path(model: str = "/run1/checkpoint-500", name: str = "prod", **engine: Any) -> Path:
        return profile_path(Path("/state"), name, model, parse_config({"engine": engine}, "test"))

    assert path(**before) == path(**before)
    assert path(**before) != path(**after)
    assert path(**after).name.startswith(f"{after.get('name', 'prod')}-")


def test_only_the_part_of_jobs_in_a_step_of_offline_work_is_charged_to_them(world: World) -> None:
    """Chat of tier flex, the profile and the verification are offline work of nobody's job."""
    for number, served in enumerate(({"docs-1": 40, "batch-1": 10, "": 30, PROFILE: 15, VERIFY: 5}, {"": 8}, {"docs-1": 7})):
        output = SimpleNamespace(num_scheduled_tokens=served)
        world.report.ends(Step(number, output, sum(served.values()), True, 0.0, 0.0, served=served), 2.0, 0.0)
    world.report.ends(Step(9, output, 14, False, 0.0, 0.0, served={"docs-1": 7}), 2.0, 0.0)  # beside chat
    assert world.shared.count(Count.HARVESTED_S) == 6.0
    assert world.shared.count(Count.JOBS_S) == 1.0 + 0.0 + 2.0
