"""What a simulated engine computes, step by step."""

from __future__ import annotations

import pytest

from harvester.policy.view import Plan
from harvester.sim import loop
from harvester.sim.replica import Replica, Scheduled

Steps = list[dict[str, int]]
"""Tokens by request, of each step."""


def recorded_steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """A list that simulations made from here on fill in."""
    steps: Steps = []

    class Recorded(Replica):
        def schedule(self, plan: Plan) -> Scheduled:
            step = super().schedule(plan)
            steps.append({track.name: tokens for track, tokens in step.work.items()})
            return step

    monkeypatch.setattr(loop, "Replica", Recorded)
    return steps
