"""docs/papers.md is what tools/papers.py makes of bench/results/papers.json."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tools import papers

RESULT: dict[str, Any] = {"rates": {"vllm": 2.97, "orca": 0.8}, "none": None}


def test_the_page_is_what_the_result_says() -> None:
    table = yaml.safe_load(papers.TABLE.read_text(encoding="utf-8"))
    assert papers.PAGE.read_text(encoding="utf-8") == papers.page(table), "run: python -m tools.papers"


def test_figures_in_a_text_are_read_from_the_result() -> None:
    assert papers.filled(RESULT, "vLLM {rates/vllm|s}, ORCA\n{rates/orca}") == "vLLM 2.97 s, ORCA 0.800"


def test_a_place_that_the_result_lacks_is_an_error() -> None:
    with pytest.raises(KeyError):
        papers.filled(RESULT, "{rates/sarathi}")


def test_a_system_that_was_not_run_has_an_empty_cell() -> None:
    table = {"title": "Rates", "columns": {"rate": "rates/{}"}, "rows": {"vllm": "vLLM", "srtf": "SRTF"}}
    assert papers.grid(RESULT, table).splitlines()[-3:-1] == ["| vLLM | 2.97 |", "| SRTF |  |"]
