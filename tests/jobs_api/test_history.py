"""What is kept of chat and jobs over a day: in a ring of the state folder, over restarts, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from harvester.serve.http.live.history import History
from harvester.serve.http.live.history_api import add_history, keep_looking
from harvester.serve.http.live.ring import Ring
from tests.fakes.replica_report import replica

NOON_S = 1_800_000_000.0  # a whole minute


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "history", 1.25)
    yield history
    history.close()


def at(second: float, chat: int = 0, jobs: int = 0, **fields: Any) -> dict[str, Any]:
    """A replica that has made so many tokens since its start."""
    idle = {"running": 0, "waiting": 0}
    return replica(100.0 + second, busy_s=second, online={**idle, "tokens": chat}, offline={**idle, "tokens": jobs}, **fields)


def chats(p99_s: float, had_s: float = 0.0, alone_s: float = 0.0) -> dict[str, Any]:
    return {"ttft": {"count": 9, "p50": p99_s / 2, "p99": p99_s}, "ttft_s": (had_s, alone_s)}


def test_a_look_tells_latencies_and_what_was_made_since_the_last(history: History) -> None:
    history.take([at(0)], NOON_S)
    history.take([at(5, chat=50, jobs=500, **chats(0.2))], NOON_S + 5)
    told = history.answer_for("5m", NOON_S + 5)
    assert (told["step_s"], len(told["at_s"]), told["at_s"][-1]) == (5, 60, NOON_S + 5)
    assert (told["chat_tokens_per_s"][-1], told["job_tokens_per_s"][-1]) == (10.0, 100.0)
    assert [told["ttft"][name][-1] for name in ("p50", "p99", "slo")] == [100.0, 200.0, 500.0]
    assert told["ttft"]["p99"][:-2] == [None] * 58, "before the server began nothing is known"


def test_chats_that_have_ended_are_not_told_as_going_on(history: History) -> None:
    history.take([at(0)], NOON_S)
    history.take([at(5, chat=50, **chats(0.2))], NOON_S + 5)
    history.take([at(10, chat=50, **chats(0.9))], NOON_S + 10)
    assert history.answer_for("5m", NOON_S + 10)["ttft"]["p99"][-2:] == [200.0, None]
    assert history.answer_for("1h", NOON_S + 10)["ttft"]["p99"][-1] == 200.0, "the minute had them"


def test_the_past_is_there_after_a_restart(history: History, tmp_path: Path) -> None:
    history.take([at(0)], NOON_S)
    history.take([at(5, jobs=500)], NOON_S + 5)
    again = History(tmp_path / "history", 1.25)
    again.take([at(10, jobs=700)], NOON_S + 10)
    again.take([at(15, jobs=800)], NOON_S + 15)
    assert again.answer_for("5m", NOON_S + 15)["job_tokens_per_s"][-3:] == [100.0, None, 20.0]
    assert again.answer_for("1h", NOON_S + 15)["job_tokens_per_s"][-1] == 60.0, "the minute that was going on goes on"
    again.close()


def test_a_replica_that_began_anew_makes_no_tokens_backwards(history: History) -> None:
    history.take([at(50, jobs=5000)], NOON_S)
    history.take([at(3, jobs=10)], NOON_S + 5)
    assert history.answer_for("5m", NOON_S + 5)["job_tokens_per_s"][-1] is None


def test_of_several_replicas_tokens_are_added_and_the_worst_latency_is_told(history: History) -> None:
    history.take([at(0), at(0, name="b")], NOON_S)
    history.take([at(5, chat=10, **chats(0.3)), at(5, name="b", chat=20, **chats(0.1))], NOON_S + 5)
    told = history.answer_for("5m", NOON_S + 5)
    assert (told["chat_tokens_per_s"][-1], told["ttft"]["p99"][-1]) == (6.0, 300.0)


def test_the_latency_told_of_several_replicas_is_that_which_is_worst_for_its_own_slo(history: History) -> None:
    """One with a short SLO that is missed does not hide behind the longer one of another model."""
    slow: dict[str, Any] = {"ttft_slo_s": 5.0}
    quick: dict[str, Any] = {"name": "b", "ttft_slo_s": 0.2}
    history.take([at(0, **slow), at(0, **quick)], NOON_S)
    history.take([at(5, chat=10, **slow, **chats(2.0)), at(5, chat=10, **quick, **chats(0.3))], NOON_S + 5)
    told = history.answer_for("5m", NOON_S + 5)
    assert [told["ttft"][name][-1] for name in ("p50", "p99", "slo")] == [150.0, 300.0, 200.0]
    assert told["kept"]["1h"] == {"minutes": 1, "kept": 0}
    history.take([at(10, chat=10, **slow), at(10, chat=10, **quick)], NOON_S + 10)
    assert history.answer_for("1h", NOON_S + 10)["ttft"]["slo"][-1] == 200.0, "the SLO of the chats that were"


def test_a_look_at_no_replica_leaves_the_slo_as_it_was(history: History) -> None:
    history.take([at(0, ttft_slo_s=0.5)], NOON_S)
    history.take([], NOON_S + 1)
    assert history.answer_for("1h", NOON_S + 1)["ttft"]["slo"][-1] == 500.0


def test_the_alone_figure_is_the_engines_account_of_the_same_chats(history: History) -> None:
    history.take([at(0, ttft_slo_s=None)], NOON_S)
    history.take([at(5, chat=1, ttft_slo_s=None, **chats(0.2, had_s=2.2, alone_s=2.0))], NOON_S + 5)
    told = history.answer_for("5m", NOON_S + 5)["ttft"]
    assert (told["alone"][-1], told["slo"][-1]) == (181.82, 227.27), "without a number the SLO is a multiple of it"


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({**chats(0.4)}, 1),
        ({**chats(0.6)}, 0),
        ({"ttft_slo_s": None, **chats(9.0, had_s=1.2, alone_s=1.0)}, 1),
        ({"ttft_slo_s": None, **chats(9.0, had_s=1.3, alone_s=1.0)}, 0),
    ],
    ids=["within the SLO", "above the SLO", "little slower", "too slow"],
)
def test_a_minute_with_chat_keeps_the_promise_or_not(history: History, fields: dict[str, Any], kept: int) -> None:
    history.take([at(0, ttft_slo_s=fields.get("ttft_slo_s", 0.5))], NOON_S)
    assert history.answer_for("1h", NOON_S)["kept"]["1h"] == {"minutes": 0, "kept": 0}, "without chat there is nothing to keep"
    history.take([at(5, chat=1, **fields)], NOON_S + 5)
    told = history.answer_for("1h", NOON_S + 5)["kept"]
    assert told == {"1h": {"minutes": 1, "kept": kept}, "24h": {"minutes": 1, "kept": kept}}
    assert history.answer_for("1h", NOON_S + 7200)["kept"] == {"1h": {"minutes": 0, "kept": 0}, "24h": {"minutes": 1, "kept": kept}}


def test_the_files_do_not_grow_and_the_oldest_goes_first(history: History, tmp_path: Path) -> None:
    sizes = []
    for day in (0, 1, 2):
        for minute in range(1440):
            second = (day * 1440 + minute) * 60.0
            history.take([at(second, jobs=int(second))], NOON_S + second)
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "history").iterdir()))
    assert sizes[1] == sizes[2] <= 210_000
    rates = history.answer_for("1d", NOON_S + 3 * 86400 - 60)["job_tokens_per_s"]
    assert set(rates) == {1.0}


def test_a_record_that_was_torn_is_as_none(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 5, 4, 2)
    for number in range(4):
        ring.write(number, (number, 0.5))
    damaged = bytearray((tmp_path / "ring").read_bytes())
    damaged[30] ^= 1
    (tmp_path / "ring").write_bytes(damaged)
    assert list(ring.last(3, 4)) == [(0.0, 0.5), None, (2.0, 0.5), (3.0, 0.5)]
    assert ring.read(5) is None, "its place holds that of an earlier turn"
    ring.close()


async def test_the_series_is_told_over_http_and_an_unknown_span_is_refused(history: History) -> None:
    app = FastAPI()
    add_history(app, history)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        assert len((await http.get("/history", params={"span": "1d"})).json()["at_s"]) == 1440
        assert (await http.get("/history", params={"span": "1y"})).status_code == 422


async def test_replicas_that_do_not_answer_leave_a_gap_and_the_looking_goes_on(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvester.serve.http.live.history_api.LOOK_S", 1e-3)
    monkeypatch.setattr("harvester.serve.http.live.history_api.time.time", lambda: 0.0)
    asked = 0
    done = asyncio.Event()

    async def replicas() -> list[dict[str, Any]]:
        nonlocal asked
        asked += 1
        if asked == 3:
            done.set()
        if asked == 2:
            raise RuntimeError("the actor died")
        return [at(float(asked))]

    looking = asyncio.create_task(keep_looking(history, replicas))
    await asyncio.wait_for(done.wait(), 10)
    looking.cancel()
    assert asked >= 3
