"""The one record of tokens, and where its fields stand as columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.ledger.store.statements import statements
from jobs.result import RESULT_NAMES
from jobs.spec import COUNTS, JobView, PartStats
from jobs.usage import NONE_USED, Usage

usages = st.builds(Usage, **dict.fromkeys(Usage.model_fields, st.integers(0, 1 << 40)))


@given(usages, usages)
def test_usages_add_up_field_by_field(one: Usage, other: Usage) -> None:
    together = one + other
    assert dict(together) == {name: getattr(one, name) + getattr(other, name) for name in Usage.model_fields}
    assert together == other + one
    assert one + NONE_USED == one


def test_every_field_is_a_column_of_results_parts_jobs_and_ledger() -> None:
    names = set(Usage.model_fields)
    assert names <= RESULT_NAMES
    assert names <= set(PartStats.model_fields) & set(JobView.model_fields)
    for name in COUNTS:
        for table in ("jobs", "leases"):
            assert f" {name} BIGINT" in statements()["schema"].split(f"EXISTS {table} (")[1].split(");")[0], table


def test_counts_are_written_in_the_order_of_the_ledgers_statements() -> None:
    for name in ("count_slice", "add_counts", "slice_stats", "slice_sums"):
        text = statements()[name]
        places = [text.index(column) for column in COUNTS]
        assert places == sorted(places), name
