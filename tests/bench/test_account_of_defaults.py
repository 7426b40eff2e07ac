"""The engine's own account of what jobs cost chat, as scenario ``defaults`` reads it."""

from __future__ import annotations

import pytest

from bench.scenarios.coserving.defaults import account, counted

PAGE = """# TYPE harvester_chat_ttft_seconds summary
harvester_chat_ttft_seconds_count{replica="a"} 4.0
harvester_chat_ttft_seconds_sum{replica="a"} 3.0
harvester_chat_ttft_seconds_sum{replica="b"} 1.0
harvester_chat_ttft_alone_seconds_sum{replica="a"} 2.5
harvester_other_seconds_sum 7.0
"""


def test_a_counter_of_chat_is_summed_over_the_replicas() -> None:
    found = counted(PAGE)
    assert found["harvester_chat_ttft_seconds_sum"] == 4.0
    assert found["harvester_chat_ttft_alone_seconds_sum"] == 2.5
    assert "harvester_other_seconds_sum" not in found


def sums(ttft: float, ttft_alone: float) -> dict[str, float]:
    return {"harvester_chat_ttft_seconds_sum": ttft, "harvester_chat_ttft_alone_seconds_sum": ttft_alone}


def test_the_account_is_of_the_time_beside_the_job_and_not_of_that_before_it() -> None:
    """Ten seconds alone came first: with them the ratio would be 16 / 14."""
    found = account(sums(10.0, 10.0), sums(16.0, 14.0))
    assert found == {"ttft_had_over_alone": 1.5, "gap_had_over_alone": None}


@pytest.mark.parametrize("after", [{}, sums(10.0, 10.0)], ids=["no counters", "no chat meanwhile"])
def test_without_chat_there_is_no_account(after: dict[str, float]) -> None:
    assert account(sums(10.0, 10.0), after)["ttft_had_over_alone"] is None
