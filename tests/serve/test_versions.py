"""Which processes a joined cluster replaces when the configuration has changed, and by what they know each other."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.launch.models import ModelChoice

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments.jobs_app import jobs_app
    from harvester.serve.deployments.openai_app import openai_apps
    from harvester.serve.deployments.replica import replica_app
    from harvester.serve.deployments.seam import asleep

CHOICE = ModelChoice("/models/tiny", "tiny", None, embedded=False)
STATE = Path("/state")
RANGE = {"min": 1, "max": 4}


def versions(**values: Any) -> dict[str, str]:
    """Of the deployments, by name."""
    config = parse_config(values, "test")
    told = (config, CHOICE, STATE, "ledger")
    jobs = jobs_app(*told, "http://127.0.0.1:8000", dict.fromkeys(config.models, CHOICE), cpu=True, pid=1)
    apps = {"chat": replica_app(*told, cpu=True), "jobs": jobs, **openai_apps(*told)}
    return {name: str(app._bound_deployment.version) for name, app in apps.items()}


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        pytest.param(2, 3, {"jobs"}, id="another fixed number"),
        pytest.param(RANGE, RANGE | {"max": 3, "target": 4, "up_s": 1, "down_s": 1}, {"jobs"}, id="what Serve alone reads"),
        pytest.param(RANGE, RANGE | {"at_risk": 3}, {"chat", "jobs"}, id="jobs at risk may ask"),
        pytest.param(RANGE | {"jobs": 2}, RANGE | {"jobs": 3}, {"chat", "jobs"}, id="jobs ask for more"),
        pytest.param({"min": 2, "max": 2, "at_risk": 2}, RANGE | {"at_risk": 2}, {"chat", "jobs"}, id="fixed before"),
        pytest.param(RANGE, RANGE | {"min": 0}, {"chat", "jobs"}, id="it may sleep"),
    ],
)
def test_a_change_of_replicas_reaches_the_processes_that_read_it(before: Any, after: Any, replaced: set[str]) -> None:
    was, now = versions(replicas=before), versions(replicas=after)
    assert {name for name in was if was[name] != now[name]} == replaced


def test_a_change_of_another_model_s_replicas_reaches_the_jobs_application() -> None:
    was, now = (versions(models={"small": {"replicas": number}}) for number in (1, 2))
    assert {name for name in was if was[name] != now[name]} == {"jobs"}


def test_nothing_is_replaced_for_a_longer_end() -> None:
    assert versions(drain_s=1) == versions(drain_s=2)


@pytest.mark.parametrize(
    ("changed", "replaced"),
    [
        pytest.param({"adapters": {"polite": "org/polite"}}, {"tiny"}, id="the first model"),
        pytest.param({"models": {"small": {"adapters": {"polite": "org/polite"}}}}, {"small"}, id="the further one"),
        pytest.param({"replicas": 2, "models": {"small": {"replicas": 2}}, "drain_s": 1}, set(), id="what replaces no replica"),
    ],
)
def test_the_jobs_application_knows_the_replicas_that_were_deployed_with_it(changed: dict[str, Any], replaced: set[str]) -> None:
    was, now = digests(models={"small": {}}), digests(**{"models": {"small": {}}} | changed)
    assert {name for name in was if was[name] != now[name]} == replaced


def digests(**values: Any) -> dict[str, str]:
    """Of the replicas of each model, as they and the jobs application are given them."""
    config = parse_config(values, "test")
    replicas = {name: replica_app(config.of(of), CHOICE, STATE, "ledger", cpu=True) for of, name in ((None, "tiny"), ("small", "small"))}
    *_, told, _ = given(jobs_app(config, CHOICE, STATE, "ledger", "http://127.0.0.1:8000", {"small": CHOICE}, cpu=True, pid=1))
    assert told == {name: given(app)[-1] for name, app in replicas.items()}
    return dict(told)


def given(app: Any) -> tuple[Any, ...]:
    """The arguments of its constructor."""
    return tuple(app._bound_deployment._replica_config.init_args)


def test_a_model_that_starts_without_a_replica_has_the_version_of_one_that_sleeps() -> None:
    app: Any = replica_app(parse_config({"replicas": {"min": 0, "max": 4}}, "test"), CHOICE, STATE, "ledger", cpu=True)
    late: Any = asleep(app)
    configs = [one._bound_deployment._deployment_config.autoscaling_config for one in (app, late)]
    assert [one.initial_replicas for one in configs] == [1, 0]
    assert configs[0].model_copy(update={"initial_replicas": 0}) == configs[1]
    assert (late._bound_deployment.version, given(late)) == (app._bound_deployment.version, given(app))
