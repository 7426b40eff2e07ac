"""A dry run's tokens: from a sample over the whole of a source, with the server's tokenizer where it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.config import PriceConfig
from jobs.plan import estimate as module
from jobs.plan.estimate import Known, estimate
from jobs.spec import JobRequest

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
