"""Replicas that jobs ask for: the fewest by the ledger, Serve's policy with them, and the note to whoever sets a deadline."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.config import ServeConfig, parse_config
from harvester.model_config import ReplicasConfig
from jobs.hint import Demand

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments.scale.scaling import FLOOR, deadline_note, floor_of, scaling, with_floor

IDLE, AT_WORK, LATE = Demand(), Demand(has_work=True), Demand(has_work=True, is_late=True)


@pytest.mark.parametrize(
    ("given", "floors"),
    [
        ({}, [0, 0, 0]),
        ({"jobs": 2}, [0, 2, 2]),
        ({"at_risk": 3}, [0, 0, 3]),
        ({"jobs": 2, "at_risk": 3}, [0, 2, 3]),
        ({"jobs": 3, "at_risk": 2}, [0, 3, 3]),
    ],
)
def test_the_fewest_follow_what_jobs_ask_for(given: dict[str, int], floors: list[int]) -> None:
    replicas = ReplicasConfig(min=1, max=4, **given)
    assert [floor_of(replicas, demand) for demand in (IDLE, AT_WORK, LATE)] == floors
    assert replicas.follows_jobs == bool(given)


@pytest.mark.parametrize(("given", "floors"), [({}, [0, 1, 1]), ({"jobs": 2}, [0, 2, 2]), ({"at_risk": 3}, [0, 1, 3])])
def test_a_model_that_may_sleep_is_kept_awake_by_rows_to_do(given: dict[str, int], floors: list[int]) -> None:
    replicas = ReplicasConfig(min=0, max=4, **given)
    assert [floor_of(replicas, demand) for demand in (IDLE, AT_WORK, LATE)] == floors
    assert replicas.follows_jobs
    first = scaling(replicas)["autoscaling_config"]
    assert (first["min_replicas"], first["initial_replicas"]) == (0, 1)


def context(chats: float, told: dict[str, list[float]], running: int = 1) -> Any:
    series = {name: [SimpleNamespace(value=value) for value in values] for name, values in told.items()}
    config = SimpleNamespace(get_target_ongoing_requests=lambda: 2.0)
    return SimpleNamespace(
        current_num_replicas=running,
        target_num_replicas=running,
        total_num_requests=chats,
        config=config,
        policy_state={},
        raw_metrics={FLOOR: series} if told else None,
    )


@pytest.mark.parametrize(
    ("chats", "told", "number"),
    [
        (0.0, {}, 0.0),
        (6.0, {}, 3.0),
        (0.0, {"a": [0.0, 2.0]}, 2.0),
        (6.0, {"a": [2.0]}, 3.0),
        (0.0, {"a": [3.0, 0.0], "b": []}, 0.0),
        (0.0, {"a": [0.0], "b": [2.0]}, 2.0),
    ],
)
def test_the_policy_takes_the_larger_of_chats_and_the_last_that_any_replica_told(
    chats: float, told: dict[str, list[float]], number: float
) -> None:
    assert with_floor(context(chats, told))[0] == number


def test_serve_is_given_the_policy_only_where_jobs_may_ask() -> None:
    with_jobs = scaling(ReplicasConfig(min=1, max=2, at_risk=2))["autoscaling_config"]
    assert with_jobs["policy"] == {"policy_function": "harvester.serve.deployments.scale.scaling:with_floor"}
    assert "policy" not in scaling(ReplicasConfig(min=1, max=2))["autoscaling_config"]
    assert scaling(ReplicasConfig(min=2, max=2, at_risk=2)) == {"num_replicas": 2}


PRICE = {"prompt_per_million": 1, "output_per_million": 2, "per_gpu_hour": 3.5}


@pytest.mark.parametrize(
    ("values", "cpu", "note"),
    [
        ({"replicas": 2}, False, None),
        ({"replicas": {"min": 1, "max": 3}}, False, None),
        ({"replicas": {"min": 1, "max": 3, "at_risk": 1}}, False, None),
        ({"replicas": {"min": 1, "max": 3, "at_risk": 3}}, True, "at least 3 replicas, 2 above the fewest."),
        ({"replicas": {"min": 1, "max": 3, "at_risk": 3}}, False, "2 above the fewest on 2 more GPUs."),
        (
            {"replicas": {"min": 1, "max": 3, "at_risk": 3}, "engine": {"tensor_parallel_size": 2}, "price": PRICE},
            False,
            "2 above the fewest on 4 more GPUs, 14.00 USD an hour.",
        ),
    ],
)
def test_who_sets_a_deadline_is_told_what_it_may_cost(values: dict[str, Any], cpu: bool, note: str | None) -> None:
    config: ServeConfig = parse_config(values, "test")
    found = deadline_note(config, cpu=cpu)
    assert (found is None) == (note is None)
    assert note is None or (found is not None and found.endswith(note))
