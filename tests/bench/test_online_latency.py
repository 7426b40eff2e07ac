"""What is made of the times that the client saw."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.harness.load import online_client
from bench.harness.load.online_client import session, tokens, written
from bench.harness.measure.latency import Online, Slo, attainment, online_summary, percentile, percentiles, read_online, windows


def online(at_s: float, *times: float, prompt: int = 10, ended: bool = True, until: float | None = None) -> Online:
    """A request sent when it was planned, one token at each of ``times``."""
    return Online(
        at_s, at_s, prompt, [(time, count + 1) for count, time in enumerate(times)], ended, until if until is not None else times[-1]
    )


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 99, None), ([5.0], 50, 5.0), ([1.0, 2.0, 3.0, 4.0], 50, 2.0), (list(range(1, 101)), 99, 99), (list(range(1, 11)), 99, 10)],
    ids=["none", "one", "even", "hundred", "ten"],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected
    assert percentile(reversed(values), share) == expected


def test_percentiles_are_named_and_rounded() -> None:
    assert percentiles([1.23456, 9.0]) == {"p50": 1.23, "p90": 9.0, "p99": 9.0}


def test_a_chunk_of_several_tokens_closes_one_gap() -> None:
    request = Online(0.0, 0.0, 5, [(1.0, 1), (1.5, 4), (2.0, 5)], True, 2.0)
    assert request.ttft_ms == pytest.approx(1000)
    assert [gap_ms for _, gap_ms in request.gaps()] == pytest.approx([500, 500])
    assert request.normalized_ms == pytest.approx(400)


def test_an_unfinished_request_counts_with_the_time_it_waited() -> None:
    never = online(1.0, ended=False, until=9.0)
    stalled = online(0.0, 1.0, 2.0, ended=False, until=9.0)
    assert never.ttft_ms == pytest.approx(8000)
    assert [gap_ms for _, gap_ms in stalled.gaps()] == pytest.approx([1000, 7000])
    summary = online_summary([never, stalled])
    assert summary["online_unfinished"] == 2
    assert summary["ttft_ms"]["p99"] == 8000


def test_a_prompt_is_counted_at_its_first_token() -> None:
    request = online(0.0, 1.0, 2.0, 3.0, prompt=100)
    assert [request.tokens_before(end_s) for end_s in (0.5, 1.0, 2.5, 9.0)] == [0, 101, 102, 103]


def test_windows_take_a_request_where_it_was_planned_and_a_gap_where_it_ended() -> None:
    lines = windows([online(1.0, 1.1, 6.1), online(6.0, 6.3)], 10.0, 5.0, Slo(200, 1000))
    assert [line["requests"] for line in lines] == [1, 1]
    assert [line["ttft_p99_ms"] for line in lines] == [100.0, 300.0]
    assert [line["tpot_p99_ms"] for line in lines] == [None, 5000.0]
    assert [line["within_slo"] for line in lines] == [True, False]


def test_a_window_without_requests_is_not_judged() -> None:
    requests = [online(0.5, 0.6, 0.7)]
    lines = windows(requests, 15.0, 5.0, Slo(200, 200))
    assert [line["within_slo"] for line in lines] == [True, None, None]
    assert attainment(requests, lines, Slo(200, 200))["windows_within_share"] == 1.0


@pytest.mark.parametrize(("ttft_ms", "tpot_ms", "within"), [(100, 50, 1), (99, 50, 0), (100, 49, 0)], ids=["equal", "ttft", "tpot"])
def test_both_objectives_must_hold(ttft_ms: float, tpot_ms: float, within: int) -> None:
    requests = [Online(0.0, 0.0, 1, [(0.1, 1), (0.15, 2)], True, 0.15)]
    slo = Slo(ttft_ms + 1e-6, tpot_ms + 1e-6)
    assert attainment(requests, windows(requests, 5.0, 5.0, slo), slo)["windows_within"] == within


EVENT = b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n'


def test_an_event_counts_when_its_last_byte_came() -> None:
    first, second = EVENT % 1, EVENT % 3
    chunks = [(1.0, first[:10]), (2.0, first[10:] + second[:5]), (3.0, second[5:]), (4.0, EVENT % 3 + b"data: [DONE]\n\n")]
    assert tokens(chunks) == ([(2.0, 1), (3.0, 3)], None)


def test_an_error_in_the_stream_is_reported() -> None:
    found, error = tokens([(1.0, EVENT % 1), (2.0, b'data: {"error": {"message": "engine died"}}\n\n')])
    assert found == [(1.0, 1)]
    assert error is not None
    assert "engine died" in error


def test_what_the_client_writes_is_what_is_read(tmp_path: Path) -> None:
    note = {"sent_s": 1.5, "chunks": [(2.0, EVENT % 1), (2.5, EVENT % 2)], "ended": True, "error": None, "refused": False, "ended_s": 2.6}
    broken = {"sent_s": 3.0, "chunks": [], "ended": False, "error": "503: full", "refused": False}
    refused = {"sent_s": 4.0, "chunks": [(4.1, b"later")], "ended": False, "error": None, "refused": True, "ended_s": 4.1}
    file = tmp_path / "online.jsonl"
    file.write_text(f"{written(note, 1.0, 9.0)}\n{written(broken, 3.0, 9.0)}\n{written(refused, 4.0, 9.0)}\n")
    found, errors = read_online(file, [100, 50, 20])
    assert found[:2] == [Online(1.0, 1.5, 100, [(2.0, 1), (2.5, 2)], True, 2.6), Online(3.0, 3.0, 50, [], False, 9.0)]
    assert found[2] == Online(4.0, 4.0, 20, [], False, 9.0, refused=True)
    assert online_summary(found)["online_refused"] == 1
    assert errors == ["503: full"]


async def test_a_request_meets_no_connection_that_its_server_is_about_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that closes an idle connection does not answer a request that is on its way."""
    monkeypatch.setattr(online_client, "IDLE_S", 0.5)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, session() as http:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for _ in range(2):
            async with http.post(url) as answer:
                assert answer.status == 200
            await asyncio.sleep(0.8)
    assert connections == 2
