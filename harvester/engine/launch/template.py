"""Whether a model thinks, as its own chat template shows: rendered with thinking on, off and unasked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harvester.engine.launch.families import NO_SWITCH, OTHERS, QUIET_PARSER, Family, Switch

Render = Callable[[Mapping[str, Any]], str]  # arguments of the template -> the prompt, up to where the answer begins


@dataclass(frozen=True, slots=True)
class ThinkingMode:
    """How a model thinks. ``switch.off`` None: always. ``parser``: vLLM's reasoning parser."""

    switch: Switch
    parser: str


def thought_of(family: Family | None, render: Render) -> ThinkingMode | None:
    """None for a model that does not think. A template that cannot be rendered shows nothing."""
    if family is not None:
        if family.reasoning is None:
            return None
        switch = found_switch(family, render)
        return None if switch is None else ThinkingMode(switch, family.reasoning)
    for other in OTHERS:
        switch = found_switch(other, render)
        if switch is not None and other.reasoning is not None:
            quiet = switch.off is not None and _rendered(render, {}) == _rendered(render, switch.off)
            return ThinkingMode(switch, QUIET_PARSER if quiet else other.reasoning)
    return None


def found_switch(family: Family, render: Render) -> Switch | None:
    """The family's switch, if the template reacts to it; `NO_SWITCH` if the thinking begins by itself; None: no thinking."""
    switch = family.switch
    if switch.off is not None:
        on, off = _rendered(render, switch.on), _rendered(render, switch.off)
        if on is not None and off is not None and on != off:
            return switch
    if family.always or (_rendered(render, {}) or "").rstrip().endswith(family.opens):
        return NO_SWITCH
    return None


def _rendered(render: Render, kwargs: Mapping[str, Any]) -> str | None:
    try:
        return render(kwargs)
    except Exception:  # a model's template may raise anything
        return None
