"""What a user reads about a task that is wrong: what it is, which value, and what to do, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from harvester.errors import HarvesterError, StateError, TaskError
from jobs.errors import did_you_mean
from jobs.states import TRANSITIONS, JobState, check_transition
from jobs.tasks.file import parse_task
from jobs.tasks.load import load_task, parse_labels, resolve_task
from jobs.tasks.options import OptionType, fitted
from jobs.tasks.schema import check_schema, follow
from jobs.tasks.template import parse, places

EXAMPLE = '{"type": "object", "properties": {"title": {"type": "string"}}}'
SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}}


def one_option(**option: Any) -> dict[str, Any]:
    return {"name": "t", "prompt": "{text} {to}", "options": {"to": option}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "{text}"}, "mine.yaml: key name is missing; a task needs at least a prompt"),
        ({"name": "t", "promt": "{text}"}, "mine.yaml: unknown key promt; did you mean prompt?"),
        (
            {"name": "t", "prompt": "{text}", "xyz": 1},
            "mine.yaml: unknown key xyz; known keys: name, description, system, prompt, combine, answer, labels, json_schema, max_tokens, "
            "temperature, thinking, chat_template_kwargs, images, adapter, options",
        ),
        (one_option(requird=True), "mine.yaml: unknown key options.to.requird; did you mean required?"),
        (
            {"name": "t", "prompt": "{text}", "max_tokens": 0},
            "mine.yaml: max_tokens: Input should be greater than or equal to 1 (given '0')",
        ),
        (
            {"name": "n" * 99, "prompt": "{text}"},
            f"mine.yaml: name: String should have at most 64 characters (given '{'n' * 80}')",
        ),
        (
            {"name": "t", "prompt": "{text}", "options": {"text": {}}},
            "mine.yaml: an option cannot be named text, which stands for the job's text column; rename it",
        ),
        (
            {"name": "t", "prompt": "{text}", "options": {"to": {}}},
            "mine.yaml: option to is never used; write {to} into a template, or remove it",
        ),
        (one_option(required=True, default="a"), "mine.yaml: option to is required and has default 'a'; remove one of the two"),
        (one_option(type="integer", default="many"), "mine.yaml: default of option to takes a whole number, given 'many'"),
        (
            {"name": "t", "prompt": "{text}", "system": "{"},
            "mine.yaml: system, line 1, character 1: a { is not closed; write {column} for a column or {{ for a brace",
        ),
        (
            {"name": "t", "prompt": "{text}", "combine": "}"},
            "mine.yaml: combine, line 1, character 1: a } closes nothing; write }} for a brace",
        ),
    ],
)
def test_a_wrong_task_file(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_task(values, "mine.yaml")
    assert caught.value.message == message


@pytest.mark.parametrize("where", ["prompt", "system", "combine", "labels", "json_schema"])
def test_an_option_may_stand_in_any_field(where: str) -> None:
    given = {"name": "t", "prompt": "{text}", "options": {"to": {}}, where: "{to}"}
    assert "to" in parse_task(given, "mine.yaml").options


def asked(inline: dict[str, Any], **options: Any) -> None:
    resolve_task("t", inline={"prompt": "{text}", **inline}, options=options)


TOLD: dict[str, Any] = {"prompt": "{text} {tone}", "options": {"tone": {"required": True}}}


@pytest.mark.parametrize(
    ("inline", "options", "message"),
    [
        (TOLD, {}, "task t needs option tone; give it with --option tone=VALUE"),
        (TOLD, {"tone": []}, "task t needs option tone; give it with --option tone=VALUE"),
        (
            {"prompt": "{text} {tone}", "options": {"tone": {"required": True, "description": "How it sounds"}}},
            {"tone": ""},
            "task t needs option tone: How it sounds; give it with --option tone=VALUE",
        ),
        (TOLD, {"tones": "a"}, "task t has no option tones; did you mean tone? Its options: tone"),
        (TOLD, {"xyz": "a"}, "task t has no option xyz; its options: tone"),
        (
            {"prompt": "all the same"},
            {},
            "task t: the prompt names no column, so every row would ask the same; put {text} where the text belongs",
        ),
        ({"prompt": "{ask}", "options": {"ask": {}}}, {"ask": ["a"]}, "task t: prompt must be text, given \"['a']\""),
        ({"prompt": "{ask}", "options": {"ask": {}}}, {}, "task t: prompt must be text, given 'None'"),
        (
            {"prompt": "{ask}", "options": {"ask": {}}},
            {"ask": "{"},
            "task t: prompt, line 1, character 1: a { is not closed; write {column} for a column or {{ for a brace",
        ),
        ({"combine": "All of it"}, {}, "task t: combine lacks {text}, which stands for the answers of the parts"),
        (
            {"labels": ["a", "b"]},
            {},
            "task t has labels and answers with text; labels belong to answer: choice, and only there",
        ),
        ({"answer": "choice"}, {}, "task t lacks labels and answers with choice; labels belong to answer: choice, and only there"),
        ({"json_schema": SCHEMA}, {}, "task t has a JSON schema and answers with text; json_schema belongs to answer: json"),
        ({"answer": "json"}, {}, "task t lacks a JSON schema and answers with json; json_schema belongs to answer: json"),
        (
            {"answer": "json", "json_schema": []},
            {},
            f"task t: schema: a JSON schema is an object, given list; e.g. {EXAMPLE}",
        ),
        (
            {"answer": "choice", "labels": ["a"]},
            {},
            "task t: at least two labels are needed, given 'a'; e.g. positive,negative",
        ),
    ],
)
def test_a_task_that_cannot_be_run(inline: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        asked(inline, **options)
    assert caught.value.message == message


def test_a_task_that_is_not_built_in() -> None:
    says = "(a task file is given by its path, like ./mine.yaml); did you mean summarize?"
    with pytest.raises(TaskError) as caught:
        load_task("sumarize")
    assert caught.value.message == f"unknown task 'sumarize' {says}"


def test_a_task_says_what_it_is_and_lists_stand_in_its_text() -> None:
    inline = {"prompt": "{text} {tags} {shape}", "description": "Tells.", "options": {"tags": {}, "shape": {}}}
    task = resolve_task("t", inline=inline, options={"tags": ["a", 3], "shape": {"ä": 1}})
    assert (task.name, task.description, task.prompt) == ("t", "Tells.", '{text} a, 3 {{"ä": 1}}')
    assert resolve_task("t", inline={"name": "own", "prompt": "{text}", "temperature": 0.5}).temperature == 0.5
    assert resolve_task("t", inline={"name": "own", "prompt": "{text}"}).name == "own"


def test_a_number_is_whole_where_it_is_written_so() -> None:
    read = [fitted(text, OptionType.NUMBER, "share") for text in ("7", "-7", "+7", "7.0")]
    assert [(value, type(value)) for value in read] == [(7, int), (-7, int), (7, int), (7.0, float)]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (7, "t: labels must be a list, given '7'; e.g. positive,negative"),
        ([True, "a"], 't: label True is not text; put it in quotes, e.g. "yes"'),
        ([None, "a"], 't: label None is not text; put it in quotes, e.g. "yes"'),
        ("a,,b", "t: label 2 is empty in 'a', '', 'b'; give each label a name"),
        ("a,b,a", "t: label 'a' is given twice; give each label once"),
        ([], "t: at least two labels are needed, given none; e.g. positive,negative"),
    ],
    ids=str,
)
def test_wrong_labels(labels: object, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse_labels(labels, "t")
    assert caught.value.message == message


def properties(**names: Any) -> dict[str, Any]:
    return {"type": "object", "properties": names}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": 3}, "t: not a JSON schema at type: 3 is not valid under any of the given schemas"),
        ({"type": "object"}, f"t: the schema must have type object and at least one property; e.g. {EXAMPLE}"),
        (properties(**{" ": {}}), "t: a property has an empty name; each property becomes a column and needs one"),
        (properties(STATUS={}), "t: property STATUS has the name of a result column; rename it, e.g. to STATUS_value"),
        (properties(a={}, A={}), "t: properties a and A would be one column in SQL; rename one"),
        (properties(a={"$ref": "#/x"}), "t: $ref #/x leads nowhere; refer to a place within the schema, like #/$defs/item"),
        (properties(a={"anyOf": [{}, {"$ref": "a"}]}), "t: $ref a leads nowhere; refer to a place within the schema, like #/$defs/item"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[3:30],
)
def test_a_wrong_schema(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        check_schema(schema, "t", ["Status"])
    assert caught.value.message == message


def test_a_long_reason_is_cut() -> None:
    with pytest.raises(TaskError) as caught:
        check_schema(properties(a={"enum": "x" * 300}), "t")
    assert caught.value.message == f"t: not a JSON schema at properties/a/enum: '{'x' * 196}..."


def test_a_reference_leads_through_objects_lists_and_escaped_names() -> None:
    root: dict[str, Any] = {"a/b": {"c~d": [1, {"e f": 2}]}}
    assert follow(root, "#/a~1b/c~0d/1/e%20f") == 2
    assert follow(root, "#") is root
    for reference in ("#/a~1b/c~0d/x", "#/a~1b/c~0d/0/y", "#/a~1b/c~0d/7", "#x", ""):
        with pytest.raises(LookupError):
            follow(root, reference)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\nb {", "line 2, character 3: a { is not closed; write {column} for a column or {{ for a brace"),
        ("}", "line 1, character 1: a } closes nothing; write }} for a brace"),
        ("{}", "line 1, character 1: {} names no column; write {text} for the job's text column"),
        (
            "{a@b}",
            "line 1, character 1: {a@b} is not a column place: a name of letters, digits, _, -, . and spaces is, or any name in quotes; "
            "write {{ and }} for braces",
        ),
    ],
)
def test_a_wrong_template(template: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse(template, "prompt")
    assert caught.value.message == f"prompt, {message}"


def test_a_long_place_is_cut_and_the_template_named_where_nobody_says_what_it_is() -> None:
    with pytest.raises(TaskError, match=rf"^template, line 1, character 1: \{{a@{'b' * 34}\.\.\. is not a column place: "):
        places("{a@" + "b" * 60 + "}")
    with pytest.raises(TaskError, match=rf": \{{a@{'b' * 36}\}} is not a column place: "):
        places("{a@" + "b" * 36 + "}")


def test_a_name_that_is_nearly_right() -> None:
    assert did_you_mean("STATE", ["Status", "state"], "columns") == "; did you mean state?"
    assert did_you_mean("x", ["state", "b"], "columns") == "; columns: state, b"
    assert did_you_mean("x", [], "columns") == "; columns: none"


def test_a_job_that_cannot_become_so_says_what_it_can() -> None:
    message = "job docs-1 is paused and cannot become running; from paused it can become: cancelled, completed, expired, failed, queued"
    with pytest.raises(StateError) as caught:
        check_transition("docs-1", JobState.PAUSED, JobState.RUNNING)
    assert caught.value.message == message
    assert isinstance(caught.value, HarvesterError)


def test_no_state_of_a_job_is_its_last() -> None:
    assert TRANSITIONS.keys() == set(JobState)
    assert all(TRANSITIONS.values())
