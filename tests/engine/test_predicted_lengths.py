"""What the brain learns of answers' lengths in vLLM's scheduler, without a model, and what `/metrics` says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from harvester.engine.shared.state import Count, SharedState
from harvester.policy.model.prediction import MIN_ANSWERS

if TYPE_CHECKING:
    from bench.harness.engine.drive import Drive

pytestmark = pytest.mark.engine

PROMPT, ANSWER = 8, 3


@pytest.fixture
def drive() -> Drive:
    from bench.harness.engine.drive import Drive
    from harvester.engine.embedded import embedded_model
    from harvester.engine.vllm.core.scheduler import HarvestScheduler

    return Drive(embedded_model(), HarvestScheduler, 1000, 32, 16, {"share": {}, "schedule": {"safepoints": "off"}})


def ask(drive: Drive, name: str, max_tokens: int, **extra: str) -> None:
    request = drive.made(name, PROMPT, max_tokens, offline=False)
    assert request.sampling_params is not None
    request.sampling_params.extra_args = dict(extra)
    drive.enter(request)


def answer(drive: Drive, count: int = MIN_ANSWERS, **extra: str) -> None:
    """So many answers of one kind, to their ends."""
    for number in range(count):
        ask(drive, f"{extra}-{number}", ANSWER, **extra)
    for _ in range(ANSWER):
        drive.step()


def predicted(drive: Drive, kind: str) -> int | None:
    median: int | None = drive.scheduler._brain.predictor.predict(kind, PROMPT).median
    return median


@pytest.mark.parametrize("extra", [{}, {"task": "brief"}, {"slo_class": "gold"}, {"task": "brief", "slo_class": "gold"}], ids=str)
def test_answers_that_ended_teach_the_length_of_their_kind(drive: Drive, extra: dict[str, str]) -> None:
    answer(drive, MIN_ANSWERS, **extra)
    assert predicted(drive, f"{extra.get('task') or extra.get('slo_class') or ''}\n") == ANSWER


def test_an_answer_that_was_aborted_teaches_nothing(drive: Drive) -> None:
    from vllm.v1.request import RequestStatus

    answer(drive, MIN_ANSWERS - 1)
    ask(drive, "gone", 100)
    drive.step()
    drive.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    assert predicted(drive, "\n") is None
    answer(drive, 1)
    assert predicted(drive, "\n") == ANSWER


def test_a_request_is_expected_to_be_as_long_as_those_before_it_and_never_longer_than_it_may(drive: Drive) -> None:
    answer(drive)
    arrived: list[Any] = []
    drive.scheduler._brain.parts.online.arrive = lambda request, now_s: arrived.append(request)
    ask(drive, "long", 500)
    ask(drive, "bounded", ANSWER - 1)
    assert [one.answer_tokens for one in arrived] == [ANSWER, ANSWER - 1]


def metrics(shared: SharedState) -> list[str]:
    from harvester.engine.frontend.metrics import SharedStateMetrics

    registry = CollectorRegistry()
    registry.register(SharedStateMetrics(shared))
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith("harvester_predicted")]


def test_coverage_and_error_stand_in_the_metrics_once_an_answer_was_judged() -> None:
    shared = SharedState.make()
    try:
        assert not any("error" in line for line in metrics(shared))
        for count, value in (Count.PREDICTED_ANSWERS, 40), (Count.WITHIN_MEDIAN, 19), (Count.WITHIN_HIGH, 36), (Count.LENGTH_ERROR, 0.25):
            shared.set(count, value)
        assert metrics(shared) == [
            "harvester_predicted_answers_total 40.0",
            'harvester_predicted_answers_covered_total{quantile="0.5"} 19.0',
            'harvester_predicted_answers_covered_total{quantile="0.9"} 36.0',
            "harvester_predicted_length_error 0.25",
        ]
    finally:
        shared.remove()


def test_what_is_learnt_is_written_where_the_metrics_are_read() -> None:
    from harvester.engine.core.reporting import Reporting
    from harvester.policy.model.prediction import Accuracy

    shared = SharedState.make()
    try:
        Reporting._predicted(shared, Accuracy(40, 19, 36, 0.25))
        assert [shared.count(Count(place)) for place in range(Count.PREDICTED_ANSWERS, Count.LENGTH_ERROR + 1)] == [40, 19, 36, 0.25]
    finally:
        shared.remove()


def test_the_places_of_the_shared_state_do_not_overlap() -> None:
    from harvester.engine.shared.state import COEFFICIENTS, Field

    assert Field.MODEL + COEFFICIENTS <= Field.COUNTERS
    assert Field.COUNTERS + len(Count) <= Field.STEPS_S
