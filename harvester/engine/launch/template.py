"""What a model's own chat template shows when it is rendered: whether the model thinks, and which conversations the template takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harvester.engine.launch.families import NO_SWITCH, OTHERS, QUIET_PARSER, Family, Switch
from jobs.engine import Message

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


# -- which conversations it takes ---------------------------------------------------------------------------------------------------------

Show = Callable[[Sequence[Mapping[str, Any]]], str]  # messages -> the prompt
_ORDER, _QUESTION = "order-7f3a", "question-7f3a"  # texts that no template writes by itself


@dataclass(frozen=True, slots=True)
class Takes:
    """``system``: messages of the system. ``parts``: the text of a message as a list of parts, and not as a string."""

    system: bool = True
    parts: bool = False

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with the system's text at the front of the first message of the user, if there is no such role."""
        if self.system or len(messages) < 2 or messages[0]["role"] != "system":
            return list(messages)
        system, first, *rest = messages
        return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]

    def shown(self, messages: Sequence[Message]) -> list[Mapping[str, Any]]:
        """The messages as the template reads them."""
        if not self.parts:
            return list(messages)
        return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def taken(show: Show) -> Takes:
    """What the template takes. One that cannot be rendered at all is believed to take everything."""
    for parts in (False, True):
        takes = Takes(system=False, parts=parts)
        if _shows(show, takes.shown([_message("user", _QUESTION)]), _QUESTION):
            whole = takes.shown([_message("system", _ORDER), _message("user", _QUESTION)])
            return Takes(_shows(show, whole, _ORDER, _QUESTION), parts)
    return Takes()


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _shows(show: Show, messages: Sequence[Mapping[str, Any]], *texts: str) -> bool:
    """Whether the prompt has all the texts: some templates raise an error for a role, others leave its messages out."""
    try:
        prompt = show(messages)
    except Exception:  # a model's template may raise anything
        return False
    return all(text in prompt for text in texts)
