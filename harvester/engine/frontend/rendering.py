"""The prompt of a job row: a conversation as the model's chat template renders it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from harvester.engine.launch.template import Takes, taken
from jobs.engine import Message, RowError

_REASON_CHARS = 500

log = logging.getLogger(__name__)


class RowTemplate:
    """A tokenizer's chat template. ``chat_template``: the user's; None: the model's own. Rendering blocks, so call it from a thread."""

    def __init__(self, tokenizer: Any, chat_template: str | None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._takes: Takes = taken(self._text)
        if not self._takes.system:
            log.info("chat_template system=off: the system text of tasks goes to the front of the user's message")

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation in roles that the template has."""
        return self._takes.fitted(messages)

    def tokens(self, messages: Sequence[Message], kwargs: Mapping[str, Any], *, opens: bool = True) -> list[int]:
        """Token ids of the conversation. ``opens``: with the template's generation prompt.

        Raises `RowError` where the template refuses the conversation.
        """
        try:
            ids = self._apply(self._takes.shown(self.fitted(messages)), {**kwargs, "tokenize": True, "return_dict": False}, opens)
        except Exception as error:  # a template raises whatever it likes
            raise RowError("refused", f"the model's chat template refuses this conversation: {_reason(error)}") from error
        assert not isinstance(ids, str), "asked for tokens"
        return list(ids)

    def _text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        found = self._apply(messages, {"tokenize": False}, opens=True)
        return found if isinstance(found, str) else str(self._tokenizer.decode(found))

    def _apply(self, messages: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any], opens: bool) -> Any:
        given = {**kwargs, "chat_template": self._chat_template, "add_generation_prompt": opens}
        return self._tokenizer.apply_chat_template(list(messages), **given)


def _reason(error: BaseException) -> str:
    """What the template says: an error of Jinja may be the cause of the one raised."""
    seen: BaseException | None = error
    while seen is not None:
        if any(kind.__name__ == "TemplateError" for kind in type(seen).__mro__):
            error = seen
            break
        seen = seen.__cause__ or seen.__context__
    return " ".join(str(error).split())[:_REASON_CHARS] or type(error).__name__
