"""The prompt of a job row: a conversation as the model's chat template renders it, and the marks that its tokenizer reads in it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harvester.engine.launch.template import Takes, taken
from jobs.access.marks import GAP, Marks
from jobs.engine import Message, RowError

_CONTROL = re.compile(r"[<\[][|｜].*[|｜][>\]]", re.DOTALL)  # names of control tokens, some of which tokenizers do not call special
_SIGN = re.compile(r"[^\w\s]")
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

    def marks(self, more: Iterable[str] = ()) -> Marks:
        """What the tokenizer reads as control tokens: those it calls special, those named as such, those that the template writes.

        ``more``: further marks, whatever tokens they have. Other tokens that were added to the vocabulary, such as runs of spaces or HTML
        tags, are text.
        """
        added: Mapping[int, Any] = getattr(self._tokenizer, "added_tokens_decoder", None) or {}
        template = self._source()
        ids = {
            number: str(token.content)
            for number, token in added.items()
            if token.special or _CONTROL.fullmatch(token.content) or (_SIGN.search(token.content) and token.content in template)
        }
        if not ids:
            log.warning("marks=unknown: the tokenizer tells no control tokens; if it reads some in a text, rows may hold them")
        for gap in (GAP, " "):
            found = Marks([*ids.values(), *more], gap)
            read = self._tokenizer.encode(" ".join(map(found.parted, found.texts)), add_special_tokens=False) if ids else ()
            if not set(read) & {number for number, text in ids.items() if text in found.texts}:
                return found
        log.warning("marks=unsafe: the tokenizer reads control tokens although a space parts them; rows may hold some")
        return found

    def _source(self) -> str:
        """The template's own text; empty for a tokenizer that has code in its place."""
        try:
            return self._chat_template or str(self._tokenizer.get_chat_template())
        except Exception:
            return ""

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
