"""Results of a verification, kept beside the latency profile: one file per model and device, valid for one build of harvester."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from harvester.config import ServeConfig
from harvester.core import build
from harvester.engine.verify.verdict import Aspect, Verdict

log = logging.getLogger(__name__)


def kept_path(profile: Path) -> Path:
    return profile.with_suffix(".verified.json")


def read(profile: Path) -> list[Verdict] | None:
    """The verdicts that are kept; None if there are none of this build of harvester, or the file cannot be read."""
    try:
        found = json.loads(kept_path(profile).read_text(encoding="utf-8"))
        if found["harvester"] != build():
            return None
        return [Verdict(Aspect(one["part"]), one["ok"], str(one["said"]), one.get("shorter_than_s")) for one in found["parts"]]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(profile: Path, verdicts: Sequence[Verdict]) -> None:
    """Keep the verdicts. A disk error is logged as a warning: the next start verifies again."""
    path = kept_path(profile)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({"harvester": build(), "parts": [one.as_json() for one in verdicts]}) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        log.warning("what was verified was not written to %s: %s", path, error.strerror)


def merged(before: Sequence[Verdict], now: Sequence[Verdict]) -> list[Verdict]:
    """The latest verdict on each part, but an undecided one never replaces one that was decided.

    A part that is off is not verified again, and stays off.
    """
    found = {one.part: one for one in before}
    decided = {one.part for one in before if one.ok is not None}
    return list((found | {one.part: one for one in now if one.ok is not None or one.part not in decided}).values())


def better(first: Sequence[Verdict], second: Sequence[Verdict]) -> list[Verdict]:
    """The better of two verdicts on each part: a part is wrong only if it was wrong both times."""
    again = {one.part: one for one in second}
    return [again.get(one.part, one) if one.ok is False else one for one in first]


def fitted(config: ServeConfig, verdicts: Sequence[Verdict] | None) -> ServeConfig:
    """The configuration with wrong parts off, and with checkpoints on if they are set to auto and were found right.

    The parts are steps that end early, checkpoints, and a budget by step times. Signals that ended too few steps turn nothing off here:
    each start checks them again, since a busy machine is late with them too, and they can be stopped while the engine runs.
    """
    found = {one.part: one.ok for one in verdicts or ()}
    schedule, enabled = config.schedule, config.checkpoint.enabled
    if found.get(Aspect.TOKENS) is False:
        schedule = schedule.model_copy(update={"safepoints": "off"})
    if found.get(Aspect.TIMES) is False:
        schedule = schedule.model_copy(update={"budget": "fixed"})
    if found.get(Aspect.KV) is False or found.get(Aspect.TOKENS) is False:
        enabled = False
    elif enabled == "auto":
        enabled = bool(found.get(Aspect.KV) and found.get(Aspect.TOKENS))
    checkpoint = config.checkpoint.model_copy(update={"enabled": enabled})
    return config.model_copy(update={"schedule": schedule, "checkpoint": checkpoint})


OFF = {
    Aspect.TOKENS: "from the next start on no step is ended early, and there are no KV checkpoints",
    Aspect.SIGNALS: "steps are not ended early until the next start, which looks again",
    Aspect.TIMES: "from the next start on, offline tokens beside chat are a fixed number",
    Aspect.KV: "from the next start on there are no KV checkpoints",
}


def line(one: Verdict) -> str:
    """The message to a user about a wrong part."""
    return f"{one.part.value} wrong on this machine: {one.said}; {OFF.get(one.part, 'nothing is turned off')}"
