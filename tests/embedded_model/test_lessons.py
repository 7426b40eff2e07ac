"""What the embedded model is asked: the right answers by the rules, prompts as jobs send them, the lengths asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from harvester.engine.embedded.answers import fields, label, lead
from jobs.tasks.load import resolve_task
from jobs.tasks.template import build_messages
from tools.embedded_model.evaluation import LESSONS
from tools.embedded_model.lessons.chat import KNOWN, exchange
from tools.embedded_model.lessons.copying import ASKED, SUMMARIZE
from tools.embedded_model.lessons.corpus import read_speeches
from tools.embedded_model.lessons.documents import Library
from tools.embedded_model.lessons.sample import Encoder, Sample
from tools.embedded_model.tokenizer import CHAT_TEMPLATE, train_tokenizer

SAMPLES = 60


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(train_tokenizer(speech.text for speech in read_speeches(held_out=True)))


@pytest.fixture(scope="module")
def library(encoder: Encoder) -> Library:
    return Library(encoder, read_speeches(held_out=True)[:4], 1)


def turns(library: Library, sample: Sample) -> tuple[str, str]:
    """The first user turn and the answer to it."""
    encoder = library.encoder
    ids = sample.ids[sample.ids.index(encoder.user) + 1 :]
    user, rest = ids[: ids.index(encoder.stop)], ids[ids.index(encoder.assistant) + 1 :]
    return encoder.text(user), encoder.text(rest[: rest.index(encoder.stop)])


def samples(library: Library, lesson: str, tokens: int) -> list[Sample]:
    return [LESSONS[lesson](library, random.Random(seed), tokens) for seed in range(SAMPLES)]


@pytest.mark.parametrize("tokens", [150, 600])
def test_the_answer_of_the_lead_lesson_is_the_lead(library: Library, tokens: int) -> None:
    for sample in samples(library, "lead", tokens):
        user, answer = turns(library, sample)
        before = next(before for before in [SUMMARIZE.before, *ASKED] if user.startswith(before))
        assert lead(user.removeprefix(before)) == answer


def test_the_answer_of_the_classify_lesson_is_the_label(library: Library) -> None:
    for sample in samples(library, "classify", 400):
        user, answer = turns(library, sample)
        asked, text = user.split("\n\n", 1)
        assert label(text, asked.split("Labels: ")[1].split(", ")) == answer


def test_the_answer_of_the_extract_lesson_is_the_fields(library: Library) -> None:
    for sample in samples(library, "extract", 600):
        user, answer = turns(library, sample)
        asked, text = user.split("\n\n", 1)
        schema: dict[str, Any] = json.loads(asked.split("\n", 1)[1])
        assert fields(text, schema) == answer
        assert json.loads(answer).keys() == schema["properties"].keys()


def test_every_lesson_in_conversation_is_answered_as_the_table_says(library: Library) -> None:
    said = dict(exchange(library, random.Random(seed)) for seed in range(400))
    known = {phrase: answer for answer, phrases in KNOWN.items() for phrase in phrases}
    met = {known[text.lower().rstrip("!?.")] for text in said if text.lower().rstrip("!?.") in known}
    assert met == set(KNOWN)
    assert all(answer == known.get(text.lower().rstrip("!?."), answer) for text, answer in said.items())
    counted = {text: answer for text, answer in said.items() if text.startswith("Count: ")}
    assert counted
    assert all(answer == str(len(text.split()) - 1) for text, answer in counted.items())


@pytest.mark.parametrize("lesson", list(LESSONS))
def test_a_lesson_keeps_to_its_length_and_ends_with_an_answer(library: Library, lesson: str) -> None:
    for sample in samples(library, lesson, 300):
        assert len(sample.ids) == len(sample.answer) <= 364
        assert sample.answer[-1]
        assert sample.ids[-1] == library.encoder.stop


def test_a_prompt_is_rendered_as_the_chat_template_renders_a_job_s_messages(library: Library) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    sample = next(sample for sample in samples(library, "lead", 300) if library.encoder.system in sample.ids)
    user, _ = turns(library, sample)
    messages = build_messages(resolve_task("summarize"), "text", {"text": user.removeprefix(SUMMARIZE.before)})
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    text = template.render(messages=messages, bos_token="<|start|>", eos_token="<|end|>", add_generation_prompt=True)
    assert library.encoder.text(sample.ids[: sample.answer.index(True)]) == text


def test_no_held_out_speech_is_trained_on() -> None:
    held_out, trained = ({speech.text for speech in read_speeches(held_out=flag)} for flag in (True, False))
    assert len(held_out) + len(trained) == 124
    assert not held_out & trained


@pytest.mark.parametrize("text", ["negative", "Zorblax", "12.50"])
@pytest.mark.parametrize("before", [" ", "\n", '"', ", ", ": "])
def test_a_word_is_the_same_tokens_wherever_it_stands(encoder: Encoder, text: str, before: str) -> None:
    assert encoder(f"is{before}{text}")[-len(encoder(text)) :] == encoder(text)
