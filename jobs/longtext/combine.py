"""The answers for the parts of a long text, combined into the answer for the whole."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.longtext.fit import Count, cut_at_sentence
from jobs.tasks.spec import Task
from jobs.tasks.template import TEXT_PLACE, fill

_SHRINK = 0.8  # of an answer's length, each time that not even two fit

_DEFAULT = """\
A text was too long to be read at once, so this task was done for its parts, one after the other:

%s

These are the answers for the parts, in order. Combine them into the one answer for the whole text. Answer in the same form.

{text}"""


def combining(task: Task, column: str | None) -> Task:
    """The task that combines: its own `combine` prompt, or one made of its prompt. ``{text}`` stands for the answers of the parts."""
    if task.combine is not None:
        return task.model_copy(update={"prompt": task.combine})
    named = {TEXT_PLACE: "(the text)"} | ({column: "(the text)"} if column else {})
    return task.model_copy(update={"prompt": _DEFAULT % fill(task.prompt, named)})


def joined(answers: Sequence[str]) -> str:
    """As the combining prompt shows them."""
    return "\n\n".join(f"Part {number} of {len(answers)}:\n{answer.strip()}" for number, answer in enumerate(answers, 1))


async def grouped(answers: Sequence[str], count: Count, budget_tokens: int) -> tuple[list[list[str]], bool]:
    """The answers in order, in groups that each fit one combining prompt; whether some had to be cut for that.

    ``count`` gives the tokens of the combining prompt for a text (see `joined`). Every group but the last holds two answers or more, so
    that combining level by level comes to an end; of two that do not fit together each is cut at the end of a sentence.
    """
    groups: list[list[str]] = []
    was_cut = False
    rest = list(answers)
    while rest:
        size = await _most(rest, count, budget_tokens)
        group, rest = rest[:size], rest[size:]
        while len(group) > 1 and any(group) and await count(joined(group)) > budget_tokens:
            group, was_cut = [cut_at_sentence(answer, int(len(answer) * _SHRINK)) for answer in group], True
        groups.append(group)
    return groups, was_cut


async def _most(answers: Sequence[str], count: Count, budget_tokens: int) -> int:
    """How many from the first fit together, by doubling, then by halving; two at least, where there are two."""
    low, high = min(2, len(answers)), len(answers)
    while low < high:
        middle = min(2 * low, (low + high + 1) // 2)
        if await count(joined(answers[:middle])) <= budget_tokens:
            low = middle
        else:
            high = middle - 1
    return low
