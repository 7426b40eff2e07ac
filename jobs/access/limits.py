"""What one API key may ask, and what one request asks: choices, inputs, tokens, the size of a grammar."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from jobs.config import Section
from jobs.errors import ParameterError, TooLargeError
from jobs.hint import ARGS

MAX_COST = 1 << 40  # costs beyond are all the same


class Most(NamedTuple):
    """How many of ``letters`` a JSON text may hold: ``most``, or ``share`` of its bytes if that is more."""

    letters: bytes
    most: int
    share: float = 0.0


# Of a JSON text, inside strings too: what is dear to read, and more of it than 2,048 inputs of a thousand token ids hold.
MOST_IN_JSON = {
    "brackets": Most(b"{[", 1 << 18),  # an object or list takes up to 30 times its bytes
    "colons": Most(b":", 1 << 19),
    "commas": Most(b",", 5 << 19),
    "digits": Most(b"0123456789", 1 << 24, share=0.25),  # a long number takes longer than many short ones; of base64 a sixth is digits
}
MAX_REPETITION = 64  # of each size of `repetition_detection`, which is looked for in Python after each token: its cost is their product
_GUIDES = (
    "structured_outputs",
    "response_format",
    "tools",
    "text",
    "output_config",
    "output_format",
)  # parameters that a grammar is made of
_PATTERNS = frozenset({"pattern", "regex", "grammar", "whitespace_pattern"})
_NESTED_JSON = frozenset({"json", "structural_tag"})  # may hold JSON as text
# Of embeddings, classes, scores and rankings: a list there is a request to the engine for each item.
_INPUTS = ("input", "messages", "inputs", "texts", "images", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2")
_REPEATS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_COUNTED = re.compile(r"\{(\d{1,9})?\s*(?:,\s*(\d{1,9})?)?\}")


class Limits(Section):
    """Limits of one API key. None: no limit."""

    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Model requests, submitted jobs and uploads. A request for `n` choices or inputs counts as `n`."
    )
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Prompt and output tokens of model requests.")
    open_requests: int | None = Field(default=None, ge=1, description="Requests in work at once.")
    max_choices: int | None = Field(default=128, ge=1, description="Choices of one request: `n` for each of its prompts.")
    max_inputs: int | None = Field(
        default=2048, ge=1, description="Inputs of one request for embeddings, classes or scores; documents of one for a ranking."
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Maximum `max_tokens` of a request; answers end there.")
    max_body_bytes: int = Field(default=32 << 20, ge=1024, description="Maximum bytes of a request's body, uploads apart.")
    max_upload_bytes: int | None = Field(default=None, ge=1, description="Maximum bytes of an uploaded file.")
    max_stored_bytes: int | None = Field(default=None, ge=1, description="Maximum bytes of all uploaded files of the key together.")
    max_grammar_cost: int | None = Field(
        default=1 << 18,
        ge=1,
        description="Maximum characters of a JSON schema, grammar, regular expression or list of choices, counted repeats written out.",
    )
    max_copied_bytes: int | None = Field(
        default=None, ge=1, description="Maximum bytes of the rows that a job copies (all but whole Parquet files)."
    )
    max_job_rows: int | None = Field(default=None, ge=1, description="Maximum rows of a job or batch.")


def check_json(text: bytes) -> None:
    """Raises `TooLargeError` for JSON that would take gigabytes once it is read, or seconds to read."""
    for what, bound in MOST_IN_JSON.items():
        most = max(bound.most, int(len(text) * bound.share))
        if len(text) > most and (found := _count(text, bound.letters)) > most:
            raise TooLargeError(f"the body holds {found:,} {what}; the limit is {most:,}: send less at once")


def _count(text: bytes, letters: bytes) -> int:
    """One pass for each letter is quickest for a few, one that takes all of them out for many."""
    return sum(map(text.count, letters)) if len(letters) < 4 else len(text) - len(text.translate(None, letters))


def check_own(body: Mapping[str, Any]) -> None:
    """Raises `ParameterError` for a parameter that only harvester itself may give its engine."""
    if _number(body.get("priority")) or ("priority" in body and _number(body["priority"]) is None):
        raise ParameterError("`priority` is the server's to set; use service_tier: priority, default or flex", "priority")
    check_transfer(body)
    extra = body.get("vllm_xargs")
    reserved = sorted(set(extra) & set(ARGS)) if isinstance(extra, dict) else []
    if reserved:
        raise ParameterError(f"`vllm_xargs` names {', '.join(reserved)}, which only jobs have; leave it out", "vllm_xargs")


def check_transfer(body: Mapping[str, Any]) -> None:
    """Raises `ParameterError` for parameters of a KV transfer, which only engines may send each other."""
    extra = body.get("vllm_xargs")
    if body.get("kv_transfer_params") is not None or (isinstance(extra, dict) and "kv_transfer_params" in extra):
        raise ParameterError("`kv_transfer_params` is the server's to set; leave it out", "kv_transfer_params")


def check_class(body: Mapping[str, Any], known: Collection[str] | None) -> None:
    """Raises `ParameterError` for an `slo_class` that the configuration lacks: the request would be promised something else."""
    extra = body.get("vllm_xargs")
    asked = extra.get("slo_class") if isinstance(extra, dict) else None
    if asked is None or known is None or (isinstance(asked, str) and asked in known):
        return
    there = f"use one of: {', '.join(sorted(known))}" if known else "this server's slo.classes has none: leave it out"
    raise ParameterError(f"unknown slo_class {str(asked)[:40]!r}; {there}", "vllm_xargs.slo_class")


def check_size(body: Mapping[str, Any], limits: Limits) -> int:
    """How many requests to the engine a request to the model is. Raises `TooLargeError` naming the parameter that is above its limit."""
    choices, inputs = _choices(body), _inputs(body)
    if limits.max_choices is not None and choices > limits.max_choices:
        raise TooLargeError(f"the request asks for {choices:,} choices; the limit is {limits.max_choices:,}: send several requests", "n")
    for name, count in inputs.items():
        if limits.max_inputs is not None and count > limits.max_inputs:
            raise TooLargeError(f"{name} holds {count:,} inputs; the limit is {limits.max_inputs:,}: send several requests", name)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"):
        asked = _number(body.get(name))
        if limits.max_tokens is not None and asked is not None and asked > limits.max_tokens:
            raise TooLargeError(f"{name} is {asked:,}; the limit of this key is {limits.max_tokens:,}: lower it", name)
    repetition = body.get("repetition_detection")
    sizes = [_number(size) or 0 for size in repetition.values()] if isinstance(repetition, dict) else []
    if max(sizes, default=0) > MAX_REPETITION:
        raise TooLargeError(f"repetition_detection has a size of {max(sizes):,}; the limit is {MAX_REPETITION}", "repetition_detection")
    if limits.max_grammar_cost is not None:
        for name in _GUIDES:
            if grammar_cost(body.get(name), limits.max_grammar_cost) > limits.max_grammar_cost:
                raise TooLargeError(
                    f"{name} describes a grammar of more than {limits.max_grammar_cost:,} characters, repeats written out, "
                    "the limit of this key; make it smaller",
                    name,
                )
    return max([choices, *inputs.values()])


def check_job(max_tokens: int, answers: object, rows: int, limits: Limits | None) -> None:
    """``answers``: JSON schema or labels of the task, if any. Raises `TooLargeError` as `check_size` does."""
    if limits is None:
        return
    check_size({"max_tokens": max_tokens, "response_format": list(answers) if isinstance(answers, tuple) else answers}, limits)
    if limits.max_job_rows is not None and rows > limits.max_job_rows:
        raise TooLargeError(f"the source has {rows:,} rows; the limit of this key is {limits.max_job_rows:,}: split it", "source")


def _choices(body: Mapping[str, Any]) -> int:
    numbers = [_number(body.get(name)) or 1 for name in ("n", "best_of")]
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and isinstance(next(iter(prompt), None), str | list) else 1
    return max(1, *numbers) * prompts


def _inputs(body: Mapping[str, Any]) -> dict[str, int]:
    """Number of inputs by field."""
    return {name: len(body[name]) for name in _INPUTS if _holds_inputs(name, body.get(name))}


def _holds_inputs(name: str, value: object) -> bool:
    """Whether it is a list of inputs. One of numbers is a single prompt, one of messages a single conversation."""
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, dict):  # with a list of contents an input; else a document that a chat is given
        return name not in ("input", "messages") and isinstance(first.get("content"), list)
    return isinstance(first, str | list)


def _number(value: object) -> int | None:
    """As the engine's front end would read it, which takes "8" and 8.0 for 8 too."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None if isinstance(value, str) else MAX_COST
    return min(MAX_COST, max(-MAX_COST, int(number))) if math.isfinite(number) else None


def grammar_cost(value: object, max_cost: int = MAX_COST) -> int:
    """Characters from which a grammar is compiled, with counted repeats written out: the grammar's memory grows with them.

    A cost above ``max_cost`` is not counted to its end: the result is then some number above ``max_cost``, and the work is bounded by it.
    """
    cost, left = 0, [("", value)]
    while left and cost <= max_cost:
        name, one = left.pop()
        if isinstance(one, dict):
            cost += sum(map(len, map(str, one)))
            if cost <= max_cost:
                left += one.items()
        elif isinstance(one, list):
            cost += len(one)
            if cost <= max_cost:
                left += [(name, item) for item in one]
        elif isinstance(one, str):
            cost += pattern_cost(one, max_cost - cost) if name in _PATTERNS else len(one)
            nested = _parsed(one) if name in _NESTED_JSON and cost <= max_cost else None
            if nested is not None:
                left.append(("", nested))
        elif name in _REPEATS:
            cost += max(0, _number(one) or 0)
    return min(cost, MAX_COST)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # the engine refuses it


def pattern_cost(pattern: str, max_cost: int = MAX_COST) -> int:
    """Length of a regular expression, or of a grammar in EBNF, with every counted repeat written out: ``(ab{3}){10}`` is 60 or so.

    At least its length as it is written, also where a repeat is shorter written out, or a group is left open. One that is longer than
    ``max_cost`` is not read.
    """
    if len(pattern) > max_cost:
        return len(pattern)
    levels = [[0, 0]]  # of each open group: cost before its last item, cost of that item
    at = 0
    while at < len(pattern):
        top, letter, width = levels[-1], pattern[at], 1
        repeat = _COUNTED.match(pattern, at) if letter == "{" else None
        if repeat is not None:
            width = repeat.end() - at
            top[1] = min(MAX_COST, top[1] * max(1, *(int(bound or 1) for bound in repeat.groups())))
        elif letter == "(":
            levels.append([0, 0])
        elif letter == ")" and len(levels) > 1:
            inner = sum(levels.pop()) + 2
            _append(levels[-1], inner)
        else:
            width = _atom(pattern, at)
            _append(top, width)
        at += width
    return min(MAX_COST, max(len(pattern), sum(map(sum, levels))))


def _append(level: list[int], cost: int) -> None:
    level[0], level[1] = min(MAX_COST, sum(level)), cost


def _atom(pattern: str, at: int) -> int:
    """Characters of the item that begins at ``at``: an escape, a class, or one letter."""
    if pattern[at] == "\\":
        return 2
    if pattern[at] != "[":
        return 1
    end = at + (2 if pattern[at + 1 : at + 2] == "^" else 1)
    end += pattern[end : end + 1] == "]"  # a ] in the first place is literal
    while end < len(pattern) and pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return min(end + 1, len(pattern)) - at
