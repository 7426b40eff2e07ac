"""Two copies of a spool, wherever they parted, make one that has all that both have."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jobs.run.spool.spools import merged

RECORDS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=6)


def spool(records: list[bytes]) -> bytes:
    return b"".join(record + b"\n" for record in records)


def records(data: bytes) -> Counter[bytes]:
    return Counter(line for line in data.split(b"\n") if line)


@given(common=RECORDS, here=RECORDS, there=RECORDS)
def test_each_record_is_there_as_often_as_in_the_copy_that_has_it_more_often(
    common: list[bytes], here: list[bytes], there: list[bytes]
) -> None:
    both = merged(spool(common + here), spool(common + there))
    assert records(both) == Counter(common + here) | Counter(common + there)
    assert both == b"" or both.endswith(b"\n")


@given(common=RECORDS, more=RECORDS)
def test_a_copy_that_goes_on_from_the_other_is_taken_as_it_is(common: list[bytes], more: list[bytes]) -> None:
    longer = spool(common + more)
    assert merged(longer, spool(common)) == merged(spool(common), longer) == longer


def test_a_line_that_a_death_has_torn_stays_a_line_of_its_own() -> None:
    assert records(merged(b"a\nb\nto", b"a\nc\n")) == Counter([b"a", b"b", b"to", b"c"])
