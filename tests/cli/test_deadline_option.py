"""`--deadline`: spans, times of day, dates, and what is none of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from harvester.cli.job.deadline import parse_deadline
from harvester.errors import UsageError

NOW_S = datetime(2030, 1, 31, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("6h", 21600),
        ("90m", 5400),
        ("1.5 h", 5400),
        ("45s", 45),
        ("2d", 172800),
        ("2030-01-31T18:30Z", 23400),
        ("2030-01-31 13:00+00:00", 3600),
    ],
)
def test_a_deadline_is_a_span_from_now_or_a_time(text: str, after_s: float) -> None:
    assert parse_deadline(text, NOW_S) == NOW_S + after_s


def test_a_time_of_day_is_the_next_such_time() -> None:
    hour = datetime.fromtimestamp(NOW_S).astimezone().hour
    later, earlier = parse_deadline(f"{hour:02d}:30", NOW_S), parse_deadline(f"{hour}:00", NOW_S)
    assert later == NOW_S + 1800
    assert earlier == NOW_S + 86400


@pytest.mark.parametrize("text", ["", "soon", "6x", "25:00", "-3h", "2020-01-01", "0s", "99999-01-01", "1e9d"])
def test_what_is_no_later_time_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="deadline"):
        parse_deadline(text, NOW_S)


@pytest.mark.parametrize(
    "words", [("submit", "."), ("submit", ".", "--dry-run"), ("resume", "docs-7f3a"), ("retry", "docs-7f3a")], ids=" ".join
)
def test_a_deadline_that_has_passed_is_wrong_use_and_nothing_is_asked(cli, server, words):
    result = cli(*words, "--deadline", "2001-01-01")
    assert result.exit_code == 2
    assert result.stderr == "error: deadline 2001-01-01 has passed; give a later one\n"
    assert not server.asked
