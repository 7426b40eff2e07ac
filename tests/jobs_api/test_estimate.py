"""A dry run's tokens: from a sample over the whole of a source, with the server's tokenizer where it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.config import PriceConfig
from jobs.plan import asked as asked_of
from jobs.plan import estimate as module
from jobs.plan.estimate import Known, estimate
from jobs.spec import JobRequest, OnLong
from jobs.tasks.abilities import Abilities

ROWS = 300  # of a row group


def request(path: Path) -> JobRequest:
    task = {"prompt": "{text}", "max_tokens": 10}
    return JobRequest.model_validate({"source": {"uri": str(path)}, "task": "plain", "task_inline": task})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Eight row groups; the texts of each are twice as long as those of the one before."""
    path = tmp_path / "docs.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
        for group in range(8):
            writer.write_table(pa.table({"text": ["x" * (4 << group)] * ROWS}))
    return path


def sampled(path: Path, **known: Any) -> dict[str, Any]:
    return estimate(request(path), Known(**known))


def test_the_sample_is_spread_over_the_source_and_reads_a_part_of_each_group(table: Path) -> None:
    found = sampled(table)
    assert (found["rows"], found["sampled_rows"], found["counted_rows"]) == (8 * ROWS, 4 * module.SAMPLE_ROWS, 0)
    of_a_row = (4 + 16 + 64 + 256) / 4 / module.CHARS_PER_TOKEN * 4
    assert found["estimated_prompt_tokens"] == round(of_a_row * 8 * ROWS / 4)


def test_a_source_of_few_groups_is_sampled_in_each(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
        for text in ("x" * 4, "x" * 12):
            writer.write_table(pa.table({"text": [text] * 10}))
    found = sampled(path)
    assert (found["sampled_rows"], found["estimated_prompt_tokens"]) == (20, 20 * 2)


def test_the_tokenizer_counts_rows_from_all_over_the_sample(table: Path) -> None:
    asked: list[int] = []

    def count(messages: tuple[Any, ...]) -> int:
        asked.append(sum(len(message["content"]) for message in messages))
        return 2 * asked[-1]

    found = sampled(table, count=count)
    assert found["counted_rows"] == len(asked) >= module.COUNTED_ROWS
    assert {length: asked.count(length) for length in set(asked)} == dict.fromkeys((4, 16, 64, 256), pytest.approx(len(asked) / 4, abs=1))
    assert found["estimated_prompt_tokens"] == 2 * (4 + 16 + 64 + 256) / 4 * 8 * ROWS


def test_a_tokenizer_that_stops_answering_counts_what_it_has_told(table: Path) -> None:
    answers = iter([8, None])
    found = sampled(table, count=lambda messages: next(answers))
    assert (found["counted_rows"], found["estimated_prompt_tokens"]) == (1, 2 * (4 + 16 + 64 + 256) / 4 * 8 * ROWS)


def test_the_price_takes_answers_to_be_as_long_as_they_may_be_where_nothing_is_known(table: Path) -> None:
    price = PriceConfig(prompt_per_million=2.0, output_per_million=3.0, currency="EUR")
    found = sampled(table, price=price, count=lambda messages: 7 * len(messages[0]["content"]))
    tokens = 2.0 * found["estimated_prompt_tokens"] + 3.0 * 10 * 8 * ROWS
    assert found["price"] == {"amount": round(tokens / 1e6, 4), "currency": "EUR"}


def test_rows_that_are_no_utf8_are_not_in_the_sample(tmp_path: Path) -> None:
    texts = pa.array([b"x" * 12, b"\xff" * 400], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "docs.parquet")
    found = sampled(tmp_path / "docs.parquet")
    assert (found["rows"], found["sampled_rows"], found["estimated_prompt_tokens"]) == (2, 1, 2 * 3)


BUDGET = 100  # tokens of a prompt; 10 more are for the answer
TASK = {"prompt": "Summarize this text in one sentence, please, and no more: {text}", "max_tokens": 10, "combine": "Combine:{text}"}
BARE = 58 // 4 + 0.5  # tokens of the prompt without its text


def of_texts(tmp_path: Path, *chars: int, on_long: str = "truncate", task: dict[str, Any] = TASK) -> dict[str, Any]:
    """The estimate for texts of so many characters each."""
    texts = ["x" * count for count in chars]
    pq.write_table(pa.table({"text": texts, "more": texts}), tmp_path / "docs.parquet")
    given = {"source": {"uri": str(tmp_path / "docs.parquet")}, "task": "plain", "task_inline": task, "on_long": on_long}
    price = PriceConfig(prompt_per_million=1e6, output_per_million=1e6, currency="EUR")
    return estimate(JobRequest.model_validate(given), Known(model="tiny", able=Abilities(context_tokens=BUDGET + 10), price=price))


def test_a_text_that_will_be_cut_counts_as_far_as_the_model_reads_it(tmp_path: Path) -> None:
    found = of_texts(tmp_path, 400_000, 40)
    assert found["estimated_prompt_tokens"] == round(BUDGET + BARE + 10)
    assert (found["most_output_tokens"], found["price"]["amount"]) == (20, found["estimated_prompt_tokens"] + 20)
    assert found["notes"][-1] == "Too long for the 110 tokens of tiny: 1 of 2 sampled rows (1 cut to fit)."


def test_a_row_that_will_be_refused_costs_nothing(tmp_path: Path) -> None:
    found = of_texts(tmp_path, 400_000, 40, on_long="error")
    assert (found["estimated_prompt_tokens"], found["most_output_tokens"]) == (round(BARE + 10), 10)
    assert found["notes"][-1] == "Too long for the 110 tokens of tiny: 1 of 2 sampled rows (1 refused)."


def test_a_row_of_several_columns_is_refused_too_for_none_of_them_may_be_cut(tmp_path: Path) -> None:
    found = of_texts(tmp_path, 400_000, 40, task={"prompt": "Compare {text} and {more}", "max_tokens": 10})
    assert (found["estimated_prompt_tokens"], found["most_output_tokens"]) == (round((13 + 80) / 4), 10)


def test_a_text_that_will_be_read_in_parts_counts_with_what_they_repeat_and_with_the_requests_that_combine(tmp_path: Path) -> None:
    room = BUDGET - BARE
    parts_chars = int(4 * (room + 3 * 0.9 * room))  # of four parts
    found = of_texts(tmp_path, parts_chars, 40, on_long="split")
    of_parts = 4 * BARE + parts_chars / 4 + 3 * 0.1 * room
    combining = 8 / 4 + 4 * 10  # one prompt with the answers of the parts
    assert found["estimated_prompt_tokens"] == round(of_parts + combining + BARE + 10)
    assert found["most_output_tokens"] == (4 + 1 + 1) * 10
    assert found["notes"][-1] == "Too long for the 110 tokens of tiny: 1 of 2 sampled rows (1 read in parts)."


def test_answers_of_many_parts_are_combined_level_by_level() -> None:
    bounds = asked_of.Bounds(budget_tokens=100, on_long=OnLong.SPLIT, answer_tokens=30)
    row = asked_of.SampledRow((), 19 * 100, 0)  # parts of 100 and 20 of 90
    assert asked_of.asked(row, 1.0, bounds) == asked_of.Asked(21 + 7 + 2 + 1, 1900 + 200 + 21 * 30 + 6 * 30 + 3 * 30, is_long=True)


def test_the_tokenizer_is_not_asked_to_count_the_whole_of_a_text_that_is_far_too_long(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 400_000]}), tmp_path / "docs.parquet")
    asked: list[int] = []

    def count(messages: tuple[Any, ...]) -> int:
        asked.append(len(messages[0]["content"]))
        return asked[-1] // 2

    found = sampled(tmp_path / "docs.parquet", able=Abilities(context_tokens=110), count=count)
    assert (asked, found["estimated_prompt_tokens"]) == ([16 * 110], 100)


def test_a_model_that_nobody_asked_gets_the_whole_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 400_000]}), tmp_path / "docs.parquet")
    assert sampled(tmp_path / "docs.parquet")["estimated_prompt_tokens"] == 100_000
