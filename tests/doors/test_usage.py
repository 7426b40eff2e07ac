"""What each key used: tokens of chat are counted as they come, owed to the quota, and told to the ledger; rows of jobs with each part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from harvester.core import Role
from harvester.engine.frontend.spending import ASKER, SPENT, counted, counted_prompt, sent
from harvester.errors import KeyRefusedError, QuotaError, StorageError
from harvester.serve.access import meter as meters
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.access.meter import MAX_LABELS, Meter
from harvester.serve.access.quota import Quotas
from harvester.serve.access.routes import CHAT, RouteTable
from harvester.serve.access.wall import guard
from jobs.access.limits import Limits
from jobs.ledger.ledger import Ledger
from jobs.spec import PartStats, Spent
from jobs.testing import ManualClock, scripted_plan
from tests.hang_up import charged

HOUR_S = 3600.0


@dataclass
class Choice:
    token_ids: list[int]


@dataclass
class Output:
    prompt_token_ids: list[int] | None
    outputs: list[Choice]


def outputs(*tokens: Sequence[int]) -> list[Output]:
    """Outputs for a prompt of 3 tokens; the choices of each have these numbers of tokens."""
    return [Output([1, 2, 3], [Choice(list(range(count))) for count in counts]) for counts in tokens]


async def stream(made: list[Output]) -> AsyncGenerator[Output, None]:
    for output in made:
        yield output


def ann(**limits: int) -> Identity:
    return Identity("ann", frozenset({Role.CHAT}), Limits(**limits))


class Book:
    """Stands in for the ledger, which may be away."""

    def __init__(self) -> None:
        self.heard: list[Spent] = []
        self.numbers: list[int] = []
        self.is_away = False

    async def spend(self, teller: str, number: int, spent: Sequence[Spent]) -> None:
        self.numbers.append(number)
        if self.is_away:
            raise StorageError("the ledger does not answer")
        self.heard += spent


# -- counting -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_delta", "made", "expected"),
    [
        (True, outputs([2], [1], [0]), (3, 3)),
        (False, outputs([2, 2], [5, 4]), (3, 9)),
        (True, outputs([1, 1], [1]), (3, 3)),
        (True, [], (0, 0)),
    ],
    ids=["streamed", "whole", "several choices", "nothing came"],
)
async def test_the_tokens_of_an_answer_are_told_once_at_its_end(is_delta: bool, made: list[Output], expected: tuple[int, int]) -> None:
    heard: list[tuple[int, int]] = []
    token = SPENT.set(lambda *tokens: heard.append(tokens))
    passed = [output async for output in counted(stream(made), is_delta=is_delta)]
    SPENT.reset(token)
    assert (passed, heard) == (made, [expected])


async def test_a_client_that_hangs_up_has_spent_what_came() -> None:
    heard: list[tuple[int, int]] = []
    token = SPENT.set(lambda *tokens: heard.append(tokens))
    async with aclosing(counted(stream(outputs([2], [2], [2])), is_delta=True)) as answer:
        async for _ in answer:
            break
    SPENT.reset(token)
    assert heard == [(3, 2)]


class Collector:
    """Holds what vLLM had made when the request was aborted."""

    def __init__(self, output: Output | Exception | None) -> None:
        self.output = output

    def get_nowait(self) -> Output | None:
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


async def hung_up(held: Collector, counted: Callable[[Any], AsyncGenerator[Any, None]]) -> list[tuple[int, int]]:
    """What was told of an answer in one piece whose client hung up while it was made."""
    began = asyncio.Event()

    async def answer() -> AsyncGenerator[Output, None]:
        sent(held)
        began.set()
        await asyncio.Event().wait()
        yield outputs([1])[0]

    return await charged(lambda: counted(answer()), began)


@pytest.mark.parametrize(
    ("left", "expected"),
    [(outputs([7])[0], (3, 7)), (outputs([0])[0], (3, 0)), (None, (0, 0)), (StorageError("the engine died"), (0, 0))],
    ids=["half made", "without a token: it waits or is in its prefill", "not sent", "of a dead engine"],
)
async def test_a_client_that_hangs_up_before_an_answer_in_one_piece_has_spent_what_was_made(
    left: Output | Exception | None, expected: tuple[int, int]
) -> None:
    assert await hung_up(Collector(left), lambda made: counted(made, is_delta=False)) == [expected]


async def test_a_client_that_hangs_up_before_its_embedding_has_spent_the_prompt() -> None:
    assert await hung_up(Collector(outputs([0])[0]), counted_prompt) == [(3, 0)]


async def test_what_a_client_had_not_read_of_a_stream_is_spent_too() -> None:
    assert await hung_up(Collector(outputs([2])[0]), lambda made: counted(made, is_delta=True)) == [(3, 2)]


async def test_an_embedding_has_spent_its_prompt() -> None:
    @dataclass
    class Embedding:
        prompt_token_ids: list[int]
        outputs: object = None

    async def embeddings() -> AsyncGenerator[Embedding, None]:
        yield Embedding([1, 2, 3, 4])

    heard: list[tuple[int, int]] = []
    token = SPENT.set(lambda *tokens: heard.append(tokens))
    passed = [output async for output in counted_prompt(embeddings())]
    SPENT.reset(token)
    assert (passed, heard) == ([Embedding([1, 2, 3, 4])], [(4, 0)])


async def test_an_answer_that_nobody_counts_is_passed_as_it_is() -> None:
    made = stream(outputs([1]))
    assert counted(made, is_delta=True) is made
    assert counted_prompt(made) is made
    await made.aclose()


async def test_the_wall_has_an_answer_counted_for_its_key() -> None:
    class Keys:
        def asks_for_key(self) -> bool:
            return True

        def identify(self, bearer: str) -> Identity | None:
            return ann(tokens_per_minute=10)

    quotas = Quotas(ManualClock())
    meter = Meter(quotas, CollectorRegistry())
    app = FastAPI()

    @app.post("/say")
    async def say() -> int:
        assert ASKER.get() == "ann"
        return len([output async for output in counted(stream(outputs([20])), is_delta=True)])

    guard(app, RouteTable({"POST /say": CHAT}), Gate(Keys(), quotas=quotas, meter=meter))
    book = Book()
    async with client(app) as http:
        assert (await http.post("/say", headers={"authorization": "Bearer x"})).status_code == 200
        refused = await http.post("/say", headers={"authorization": "Bearer x"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")
    await meter.tell(book)
    assert book.heard == [Spent(owner="ann", kind="chat", requests=1, prompt_tokens=3, output_tokens=20)]
    assert (SPENT.get(), ASKER.get()) == (None, None)


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


# -- told ---------------------------------------------------------------------------------------------------------------------------


async def test_usage_that_could_not_be_told_is_told_later() -> None:
    meter, book = Meter(Quotas(ManualClock()), CollectorRegistry()), Book()
    book.is_away = True
    meter.spent(ann(), 5, 7)
    await meter.tell(book)
    meter.spent(ann(), 1, 1)
    book.is_away = False
    await meter.tell(book)
    await meter.tell(book)
    await meter.tell(book)
    assert book.heard == [
        Spent(owner="ann", kind="chat", requests=1, prompt_tokens=5, output_tokens=7),
        Spent(owner="ann", kind="chat", requests=1, prompt_tokens=1, output_tokens=1),
    ]
    assert book.numbers == [1, 1, 2], "the first is said again as it was, so that it counts once"


async def test_a_process_that_ends_tells_all_though_the_ledger_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsOnce(Book):
        async def spend(self, teller: str, number: int, spent: Sequence[Spent]) -> None:
            await super().spend(teller, number, [] if len(self.numbers) == 1 else spent)
            if len(self.numbers) == 2:
                raise StorageError("the ledger does not answer")

    monkeypatch.setattr(meters, "LAST_RETRY_S", 0.0)
    meter, book = Meter(Quotas(ManualClock()), CollectorRegistry()), FailsOnce()
    book.is_away = True
    meter.spent(ann(), 5, 7)
    await meter.tell(book)
    book.is_away = False
    meter.spent(ann(), 1, 1)
    await meter.tell_last(book)
    assert book.numbers == [1, 1, 1, 2]
    assert book.heard[-1] == Spent(owner="ann", kind="chat", requests=1, prompt_tokens=1, output_tokens=1)


async def test_a_process_ends_though_the_ledger_does_what_nobody_expects(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Book):
        async def spend(self, teller: str, number: int, spent: Sequence[Spent]) -> None:
            raise ZeroDivisionError

    meter = Meter(Quotas(ManualClock()), CollectorRegistry())
    meter.spent(ann(), 5, 7)
    await meter.tell_last(Broken())
    assert [record.getMessage() for record in caplog.records] == ["usage_lost"]


@pytest.mark.parametrize("is_away", [False, True], ids=["all told", "one report not confirmed"])
async def test_a_process_that_ends_tells_what_it_counted_since_its_last_report(is_away: bool) -> None:
    meter, book = Meter(Quotas(ManualClock()), CollectorRegistry()), Book()
    book.is_away = is_away
    meter.spent(ann(), 5, 7)
    await meter.tell(book)
    book.is_away = False
    meter.spent(ann(), 1, 1)
    await meter.tell_last(book)
    assert [(one.prompt_tokens, one.output_tokens) for one in book.heard] == [(5, 7), (1, 1)]
    await meter.tell_last(book)
    assert len(book.heard) == 2


async def test_a_process_that_ends_does_not_wait_for_a_ledger_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Book):
        async def spend(self, teller: str, number: int, spent: Sequence[Spent]) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(meters, "LAST_TELL_S", 0.0)
    meter = Meter(Quotas(ManualClock()), CollectorRegistry())
    meter.spent(ann(), 5, 7)
    await meter.tell_last(Silent())
    assert [record.getMessage() for record in caplog.records] == ["usage_lost the ledger does not answer"]


def test_metrics_have_a_bounded_number_of_keys() -> None:
    registry = CollectorRegistry()
    meter = Meter(Quotas(ManualClock()), registry)
    for number in range(MAX_LABELS + 20):
        meter.spent(Identity(f"name-{number}", frozenset()), 1, 2)
    meter.refused(KeyRefusedError("who?"))
    text = generate_latest(registry).decode()
    assert text.count("harvester_key_requests_total{") == MAX_LABELS + 1
    assert 'harvester_key_tokens_total{key="other",kind="output"} 40.0' in text
    assert 'harvester_refused_requests_total{code="invalid_api_key"} 1.0' in text


def test_tokens_that_were_spent_are_owed(clock: ManualClock) -> None:
    quotas = Quotas(clock)
    who = ann(tokens_per_minute=100)
    Meter(quotas, CollectorRegistry()).spent(who, 90, 110)
    with pytest.raises(QuotaError, match="100 tokens a minute"), quotas.entered(who, 1):
        pass


# -- the ledger ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100 * HOUR_S + 5)


@pytest.fixture
async def ledger(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Ledger]:
    made = Ledger(Path(":memory:"), tmp_path, lease_s=10.0, now_s=clock(), new_server=True)
    yield made
    made.check()
    made.close()


def usage(ledger: Ledger) -> list[dict[str, object]]:
    return sorted(ledger.table("usage").to_pylist(), key=lambda row: (str(row["owner"]), row["kind"], row["hour_s"]))


def test_usage_adds_up_by_owner_kind_and_hour(ledger: Ledger, clock: ManualClock) -> None:
    one = Spent(owner="ann", kind="chat", requests=1, prompt_tokens=3, output_tokens=4)
    nobody = one.model_copy(update={"owner": None})
    ledger.spend("replica-1", 1, [one, one], clock())
    ledger.spend("replica-2", 1, [nobody], clock())
    ledger.spend("replica-1", 2, [nobody], clock() + 10)
    ledger.spend("replica-1", 3, [one], clock() + HOUR_S)
    told_of = [(row["owner"], row["hour_s"], row["requests"], row["prompt_tokens"], row["output_tokens"]) for row in usage(ledger)]
    assert told_of == [(None, 100 * HOUR_S, 2, 6, 8), ("ann", 100 * HOUR_S, 2, 6, 8), ("ann", 101 * HOUR_S, 1, 3, 4)]


def test_usage_that_is_told_twice_counts_once(tmp_path: Path, clock: ManualClock) -> None:
    one = Spent(owner="ann", kind="chat", requests=1, prompt_tokens=3, output_tokens=4)
    for _ in range(2):  # a ledger that dies between its change and its answer is told again
        ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path, lease_s=10.0, now_s=clock(), new_server=False)
        ledger.spend("replica-1", 7, [one], clock())
        ledger.spend("replica-1", 7, [one], clock())
        found = usage(ledger)
        ledger.close()
    assert [(row["owner"], row["requests"], row["output_tokens"]) for row in found] == [("ann", 1, 4)]


def test_the_rows_of_a_job_are_its_owners_usage(ledger: Ledger, clock: ManualClock) -> None:
    plan = scripted_plan("docs-0001", 4, 4)
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"owner": "ann"})}), new=True)
    lease = ledger.lease("a", "scripted", clock())
    assert lease is not None
    stats = PartStats(rows_ok=3, rows_error=1, prompt_tokens=40, output_tokens=8)
    ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, clock())
    assert usage(ledger) == [
        {"owner": "ann", "kind": "batch", "hour_s": 100 * HOUR_S, "requests": 4, "prompt_tokens": 40, "output_tokens": 8}
    ]
