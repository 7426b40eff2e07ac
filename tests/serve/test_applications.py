"""Whose the applications of a joined cluster are."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.applications import are_anothers

OWN = "ledger-own"


@pytest.mark.parametrize(
    ("running", "found", "expected"),
    [([], ["ledger-x"], False), (["chat"], ["ledger-x"], True), (["chat"], ["ledger-x", OWN], False), (["chat"], [], False)],
    ids=["nothing runs", "another's", "ours", "no ledger at all"],
)
def test_applications_are_anothers_where_only_another_ledger_is(running: list[str], found: list[str], expected: bool) -> None:
    assert are_anothers(running, OWN, found) is expected
