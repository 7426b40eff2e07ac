"""Hostile SQL at the door: each query ends by itself, is refused or is killed, and others are answered beside it."""

from __future__ import annotations

from typing import cast

import pytest

from jobs.sql.pool import PoolLimits
from tests.doors.hostile_sql import KINDS, measured

# The victim waits as long as it takes: what is checked is that its turn comes, while no query of the attacker can outstay its limits.
LIMITS = PoolLimits(seconds=20.0, wait_s=600.0)


@pytest.mark.timeout(900)
async def test_two_hundred_hostile_queries_fail_no_other() -> None:
    found = await measured(200, at_once=4, name="attacker", limits=LIMITS)
    statuses = cast("dict[int, int]", found["hostile"])
    assert sum(statuses.values()) == 200
    assert set(statuses) <= {200, 400, 429}, statuses
    assert statuses[400] >= 200 // KINDS
    for what in ("select 1", "GET /jobs"):
        probes = cast("dict[str, dict[int, int]]", found[what])
        assert set(probes["statuses"]) == {200}, (what, probes)
