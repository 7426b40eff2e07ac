"""Tasks by name, by path and inline; options, labels and schemas checked when a task is resolved."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from harvester.errors import TaskError
from jobs.tasks.load import list_tasks, load_task, resolve_task
from jobs.tasks.spec import AnswerKind
from jobs.tasks.template import places, render

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "number"}}}
OPTIONS: dict[str, dict[str, Any]] = {
    "summarize": {},
    "classify": {"labels": "good,bad"},
    "extract": {"schema": SCHEMA},
    "translate": {"to": "German"},
    "embed": {},
    "ask": {"prompt": "Who wrote {text}?"},
}


def test_the_built_in_tasks_are_listed_with_descriptions() -> None:
    tasks = list_tasks()
    assert [task.name for task in tasks] == ["ask", "classify", "embed", "extract", "summarize", "translate"]
    assert all(task.description for task in tasks)
    assert all(option.description for task in tasks for option in task.options.values())


@pytest.mark.parametrize("name", OPTIONS)
def test_a_built_in_task_resolves_to_a_prompt_over_the_text(name: str) -> None:
    task = resolve_task(name, options=OPTIONS[name])
    assert places((task.system or "") + task.prompt) == ("text",)
    assert render(task.prompt, {"text": "THE-TEXT"}).count("THE-TEXT") == 1
    assert task.sampling_temperature == 0.0


@pytest.mark.parametrize("name", OPTIONS)
def test_a_built_in_file_starts_with_a_comment_for_who_copies_it(name: str) -> None:
    head = (files("jobs.tasks") / "builtin" / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0].splitlines()
    assert len(head) >= 4
    assert all(line.startswith("#") for line in head)
    assert f"--task {name}" in "\n".join(head)


def test_summarize_asks_for_a_short_answer() -> None:
    task = resolve_task("summarize")
    assert "one or two sentences" in task.prompt
    assert task.max_tokens == 96


def test_the_answer_of_classify_is_a_choice_of_the_labels() -> None:
    task = resolve_task("classify", options={"labels": "good, bad , so {so}"})
    assert (task.answer, task.labels) == (AnswerKind.CHOICE, ("good", "bad", "so {so}"))
    assert "Labels: good, bad, so {so}\n" in render(task.prompt, {"text": ""})


def test_labels_may_be_a_list() -> None:
    task = resolve_task("classify", options={"labels": ["a", "b", 3]})
    assert task.labels == ("a", "b", "3")
    assert task == resolve_task("classify", options={"labels": " a,b ,3"})


def test_the_answer_of_extract_is_json_of_the_schema() -> None:
    task = resolve_task("extract", options={"schema": SCHEMA})
    assert (task.answer, task.json_schema) == (AnswerKind.JSON, SCHEMA)
    assert '"vendor": {"type": "string"}' in render(task.prompt, {"text": ""})


def test_an_option_within_text_is_no_template() -> None:
    task = resolve_task("translate", options={"to": "{text} and {other}"})
    assert places(task.prompt) == ("text",)
    assert "into {text} and {other}." in render(task.prompt, {"text": "x"})


def test_the_prompt_of_ask_is_a_template() -> None:
    task = resolve_task("ask", options={"prompt": "{title}: {body} {{}}"})
    assert task.prompt == "{title}: {body} {{}}"


def test_values_of_the_request_lie_over_the_files() -> None:
    task = resolve_task("summarize", max_tokens=7, temperature=0.7)
    assert (task.max_tokens, task.temperature) == (7, 0.7)


def test_an_option_given_as_null_is_not_given() -> None:
    assert resolve_task("summarize", options={"labels": None}) == resolve_task("summarize")


def test_a_task_file_is_loaded_by_path_and_named_by_it(tmp_path: Path) -> None:
    path = tmp_path / "headline.yaml"
    path.write_text("prompt: 'Headline in {lang} for {text}'\noptions: {lang: {description: l, default: English}}\n")
    assert load_task(path).name == "headline"
    inline = load_task(path).inline()
    assert resolve_task("headline", inline=inline).prompt == "Headline in English for {text}"
    assert resolve_task("headline", inline=inline, options={"lang": "Latin"}).prompt == "Headline in Latin for {text}"


def test_a_loaded_file_travels_inline_and_resolves_to_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mood.yaml"
    path.write_text("prompt: 'Mood of {text}?'\nanswer: choice\nlabels: [up, down]\nmax_tokens: 4\n")
    inline = load_task(path).inline()
    assert resolve_task("other", inline=inline) == resolve_task("mood", inline={**inline, "name": "mood"})
    with pytest.raises(TaskError, match="unknown task"):
        resolve_task(str(path))
    assert "options" not in inline


def test_an_option_neither_required_nor_given_is_null() -> None:
    inline = {"prompt": "{text}", "system": "{tone}", "options": {"tone": {"description": "System message of the conversation."}}}
    assert resolve_task("t", inline=inline).system is None
    assert resolve_task("t", inline=inline, options={"tone": "Be kind to {author}."}).system == "Be kind to {author}."


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        pytest.param("sumarize", {}, "did you mean summarize?", id="near-name"),
        pytest.param("zzz", {}, "built-in tasks: ask, classify, embed, extract, summarize, translate", id="far-name"),
        pytest.param("translate", {"too": "x"}, "no option too; did you mean to?", id="near-option"),
        pytest.param("summarize", {"zzz": 1}, "no option zzz; its options: none", id="no-options"),
        pytest.param("translate", {}, "needs option to: The language", id="missing-option"),
        pytest.param("translate", {"to": ""}, "needs option to: ", id="empty-option"),
        pytest.param("classify", {"labels": "one"}, "at least two labels are needed, given 'one'", id="one-label"),
        pytest.param("classify", {"labels": "a,b,a"}, "label 'a' is given twice", id="double-label"),
        pytest.param("classify", {"labels": "a,,b"}, "label 2 is empty", id="empty-label"),
        pytest.param("classify", {"labels": [True, "b"]}, "label True is not text; put it in quotes", id="bool-label"),
        pytest.param("classify", {"labels": 7}, "task classify: option labels takes a list, like a,b, given '7'", id="number-labels"),
        pytest.param("ask", {"prompt": "What?"}, "the prompt names no column", id="no-place"),
        pytest.param("ask", {"prompt": "Why {text"}, "task ask: prompt, line 1, character 5: a { is not closed", id="bad-prompt"),
        pytest.param("ask", {"prompt": 7}, "prompt must be text", id="prompt-type"),
        pytest.param("extract", {"schema": "x.json"}, "task extract: option schema takes a JSON object, given 'x.json'", id="schema-text"),
    ],
)
def test_a_wrong_request_says_what_to_do(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        resolve_task(name, options=options)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


EACH_OTHER = [{"$ref": f"#/$defs/{number}"} for number in range(12)]


def doubling(keyword: str) -> dict[str, Any]:
    """40 subschemas, each of which refers to the next one twice."""
    made: dict[str, Any] = {"40": {"type": "string"}}
    for number in range(40):
        deeper = {"$ref": f"#/$defs/{number + 1}"}
        made[str(number)] = {"type": "object", keyword: {"a": deeper, "b": deeper} if keyword == "properties" else [deeper, deeper]}
    return made


def link(number: int) -> dict[str, Any]:
    return {"items": {"$ref": f"#/$defs/{min(number + 1, 299)}"}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        pytest.param({"type": "array"}, "must have type object and at least one property", id="no-object"),
        pytest.param({"type": "object", "properties": {}}, "at least one property", id="no-property"),
        pytest.param({"type": "object", "properties": {"a": {"type": "text"}}}, "not a JSON schema at properties/a/type: ", id="bad-type"),
        pytest.param(
            {"type": "object", "properties": {"a": {"pattern": "("}}}, "not a JSON schema at properties/a/pattern", id="bad-regex"
        ),
        pytest.param({"type": "object", "properties": {"Status": {}}}, "property Status has the name of a result column", id="reserved"),
        pytest.param({"type": "object", "properties": {"a": {}, "A": {}}}, "properties a and A would be one column", id="same-in-sql"),
        pytest.param({"type": "object", "properties": {" ": {}}}, "empty name", id="empty-name"),
        pytest.param({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "$ref #/$defs/b leads nowhere", id="dead-ref"),
        pytest.param({"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}, "$ref http://x/y leads nowhere", id="remote-ref"),
        pytest.param(
            {"type": "object", "properties": {"a": {"pattern": "^(?!x)"}}},
            "pattern '^(?!x)' cannot be matched in linear time: Invalid regular expression: invalid perl operator: (?!; write it without",
            id="lookahead",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {}}, "if": {"anyOf": [{"patternProperties": {"(a)\\1": {}}}]}},
            "pattern '(a)\\\\1' cannot be matched in linear time",
            id="backreference",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"$ref": "#/x/y"}}, "x": {"y": {"pattern": "(?<=a)b"}}},
            "pattern '(?<=a)b' cannot be matched in linear time",
            id="pattern-behind-a-reference",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"patternProperties": {"a": {}}}}, "unevaluatedProperties": False},
            "unevaluatedProperties cannot be checked in a schema with patternProperties; use additionalProperties",
            id="unevaluated-properties",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": doubling("properties")},
            "the schema has more than 100,000 values once each $ref is replaced by what it leads to, and the counted repeats of ",
            id="references-that-double",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": doubling("allOf")},
            "more than 100,000 values",
            id="references-that-double-within-allof",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {str(n): {"anyOf": EACH_OTHER} for n in range(12)}},
            "more than 100,000 values",
            id="references-to-each-other",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"pattern": "(a?){1000}" * 60}}},
            "more than 100,000 values",
            id="a-pattern-that-is-large",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {str(n): link(n) for n in range(300)}},
            "the schema is nested too deeply to be checked; make it flatter",
            id="a-long-chain",
        ),
    ],
)
def test_a_schema_that_is_none_says_why(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        resolve_task("extract", options={"schema": schema})
    assert caught.value.message.startswith("task extract: schema: ")
    assert message in caught.value.message


def test_words_of_a_schema_that_are_no_keywords_are_none() -> None:
    values = {"const": {"pattern": "(?=a)", "$ref": "#/x"}, "examples": [{"pattern": "(?=a)"}], "enum": [{"$ref": "#/x"}]}
    names = {"pattern": {"type": "string"}, "patternProperties": {}, "unevaluatedProperties": {"$ref": "#/properties/pattern"}}
    schema = {"type": "object", "properties": names | {"a": values}}
    assert resolve_task("extract", options={"schema": schema}).json_schema == schema


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("promt: x", "unknown key promt; did you mean prompt?", id="near-key"),
        pytest.param("name: x", "key prompt is missing", id="no-prompt"),
        pytest.param("prompt: '{a@b}'", "prompt, line 1, character 1: {a@b} is not a column place", id="bad-template"),
        pytest.param("prompt: '{text}'\nsystem: '{'", "system, line 1, character 1: a { is not closed", id="bad-system"),
        pytest.param(
            "prompt: '{text}'\nanswer: yaml",
            "answer: Input should be 'text', 'choice', 'embedding' or 'json' (given 'yaml')",
            id="bad-answer",
        ),
        pytest.param("prompt: '{text}'\nmax_tokens: 0", "max_tokens: ", id="bad-bound"),
        pytest.param("prompt: '{text} {to}'\noptions: {to: {requird: true}}", "did you mean required?", id="option-key"),
        pytest.param("prompt: '{text}'\noptions: {to: {required: true}}", "option to is never used", id="unused-option"),
        pytest.param("prompt: '{text}'\noptions: {text: {}}", "an option cannot be named text", id="option-text"),
        pytest.param("prompt: '{to}'\noptions: {to: {required: true, default: a}}", "is required and has default 'a'", id="both"),
        pytest.param("- prompt", "holds a list; it must be a mapping", id="no-mapping"),
        pytest.param("a: [", "is not YAML", id="no-yaml"),
        pytest.param("prompt: '{text}'\nmax_tokens: 1\nmax_tokens: 2", ": key max_tokens is given twice, in lines 2", id="twice"),
    ],
)
def test_a_wrong_task_file_names_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(TaskError) as caught:
        load_task(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("inline", "message"),
    [
        pytest.param({"prompt": "{text}", "labels": ["a", "b"]}, "task t has labels and answers with text", id="labels-text"),
        pytest.param({"prompt": "{text}", "answer": "choice"}, "task t lacks labels and answers with choice", id="choice-alone"),
        pytest.param({"prompt": "{text}", "answer": "json"}, "task t lacks a JSON schema", id="json-alone"),
        pytest.param({"prompt": "{text}", "json_schema": SCHEMA}, "task t has a JSON schema and answers with text", id="schema-text"),
    ],
)
def test_the_answer_and_its_shape_must_fit(inline: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        resolve_task("t", inline=inline)


def test_a_missing_task_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot read task file .*none.yaml: No such file or directory"):
        load_task(tmp_path / "none.yaml")


TYPED = {
    "prompt": "{text}: {words} {share} {loud} {tags} {shape} {tone}",
    "options": {
        "words": {"type": "integer"},
        "share": {"default": 0.5},
        "loud": {"default": False},
        "tags": {"default": ["a"]},
        "shape": {"type": "object"},
        "tone": {"default": "calm"},
    },
}


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("words", " 7 ", 7),
        ("share", "0.25", 0.25),
        ("share", "1", 1),
        ("loud", "Yes", True),
        ("tags", "b, c", ["b", "c"]),
        ("shape", '{"a": 1}', {"a": 1}),
        ("tone", "7", 7),
    ],
)
def test_text_on_the_command_line_means_what_json_means_in_a_request(option: str, text: str, value: object) -> None:
    assert resolve_task("t", inline=TYPED, options={option: text}) == resolve_task("t", inline=TYPED, options={option: value})


@pytest.mark.parametrize(
    ("option", "value", "takes"),
    [
        ("words", "many", "a whole number"),
        ("words", "1.5", "a whole number"),
        ("words", True, "a whole number"),
        ("share", "nan", "a number"),
        ("loud", "loud", "true or false"),
        ("loud", 1, "true or false"),
        ("tags", {"a": 1}, "a list, like a,b"),
        ("shape", "[1]", "a JSON object"),
        ("shape", "{", "a JSON object"),
    ],
)
def test_a_value_of_another_type_is_refused(option: str, value: object, takes: str) -> None:
    with pytest.raises(TaskError) as caught:
        resolve_task("t", inline=TYPED, options={option: value})
    assert caught.value.message == f"task t: option {option} takes {takes}, given {str(value)!r}"


def test_a_default_must_be_of_the_options_type() -> None:
    inline = {"prompt": "{text} {words}", "options": {"words": {"type": "integer", "default": "many"}}}
    with pytest.raises(TaskError, match="default of option words takes a whole number, given 'many'"):
        resolve_task("t", inline=inline)
