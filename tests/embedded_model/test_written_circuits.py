"""What the written weights answer, held to the grammar as jobs hold answers."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from harvester.engine.embedded import embedded_model
from harvester.engine.embedded.answers import lead
from harvester.engine.embedded.conversation import CANNOT, KEYS, MAX_COUNTED, reply
from tools.embedded_model.circuits.copier import written_network
from tools.embedded_model.evaluation import Grammars, Logits, evaluate, table
from tools.embedded_model.lessons.copying import SUMMARIZE
from tools.embedded_model.lessons.corpus import read_speeches
from tools.embedded_model.lessons.documents import Library
from tools.embedded_model.lessons.sample import Encoder, Sample, add_turn, open_chat
from tools.embedded_model.tokenizer import STOP, train_tokenizer

SAMPLES = 20
TEXT = "Zworp friends, it is 12:30 at the café: “so be it”."


@pytest.fixture(scope="module")
def written() -> tuple[Logits, Library, Grammars]:
    tokenizer = train_tokenizer(speech.text for speech in read_speeches(held_out=False))
    encoder = Encoder(tokenizer)
    network = written_network(encoder)
    return (lambda ids: network.logits(network(ids))), Library(encoder, read_speeches(held_out=True), 2), Grammars(tokenizer)


@pytest.mark.parametrize(
    ("lesson", "tokens"),
    [
        ("extract", 300),
        pytest.param("extract", 600, marks=pytest.mark.long),
        ("classify", 200),
        pytest.param("classify", 500, marks=pytest.mark.long),
    ],
)
def test_it_answers_as_jobs_ask(written: tuple[Logits, Library, Grammars], lesson: str, tokens: int) -> None:
    logits, library, grammars = written
    figures = evaluate(logits, library, grammars, 5, SAMPLES, {lesson: (tokens,)})
    guided = figures[lesson][tokens].guided
    assert guided is not None
    assert guided >= 0.85
    assert f"| {lesson}, as jobs ask | {guided:.1%} at {tokens} |" in table(figures)


@pytest.mark.parametrize("tokens", [128, pytest.param(512, marks=pytest.mark.long)])
def test_it_answers_with_the_lead_and_ends(written: tuple[Logits, Library, Grammars], tokens: int) -> None:
    logits, library, grammars = written
    assert evaluate(logits, library, grammars, 5, SAMPLES, {"lead": (tokens,)})["lead"][tokens].free >= 0.9


def test_it_converses(written: tuple[Logits, Library, Grammars]) -> None:
    logits, library, grammars = written
    assert evaluate(logits, library, grammars, 5, SAMPLES, {"chat": (128,)})["chat"][128].free >= 0.95


@pytest.mark.parametrize(
    "said",
    [
        ["Hello!", "What are you?", "How do I choose a real model?", "Say something presidential.", "And again?", "Why is the sky blue?"],
        ["Repeat: Brave zworp friends", "Count the words: the brave zworp friends of Mars", "Say: the brave friends", "hi"],
        [f"Count: {'a ' * (MAX_COUNTED - 1)}b", "thanks", "Echo: hello and thanks", f"Count: {'zworp ' * 9}b"],
    ],
)
def test_it_answers_the_last_turn(written: tuple[Logits, Library, Grammars], said: list[str]) -> None:
    logits, library, _ = written
    sample = open_chat(library.encoder, "You are a helpful assistant.")
    for text in said:
        add_turn(sample, library.encoder, library.encoder(text), library.encoder(reply(text)))
    assert answered(logits, library, sample) == "".join(reply(text) + STOP for text in said)


def test_no_answer_has_the_key_of_another() -> None:
    assert all(reply(answer) in (answer, CANNOT) for answer in KEYS)


def answered(logits: Logits, library: Library, sample: Sample) -> str:
    """The likeliest token at each place of the right answers."""
    ids = torch.tensor([sample.ids])
    places = torch.tensor(sample.answer).nonzero()[:, 0]
    with torch.inference_mode():
        return library.encoder.text(logits(ids)[0, places - 1].argmax(-1).tolist())


@pytest.mark.parametrize("after", [" Then all of them went home, and nobody came back.", "\nMore.", ""])
def test_it_copies_a_lead_and_its_end(written: tuple[Logits, Library, Grammars], after: str) -> None:
    logits, library, _ = written
    text = 'A NEW WORLD\nBrave zworp friends met Dr. Quist and Harry S. Truman at noon, and said: "Good friends!"' + after
    sample = open_chat(library.encoder, SUMMARIZE.system)
    add_turn(sample, library.encoder, library.encoder(SUMMARIZE.before + text), library.encoder(lead(text)))
    assert answered(logits, library, sample) == lead(text) + STOP


def test_its_weights_fit_float16_and_its_file_twelve_million_bytes(written: tuple[Logits, Library, Grammars]) -> None:
    weights = written_network(written[1].encoder).tensors().values()
    assert all(bool(weight.half().isfinite().all()) for weight in weights)
    assert 2 * sum(weight.numel() for weight in weights) <= 12_000_000


def test_the_shipped_weights_are_those_that_the_program_writes(written: tuple[Logits, Library, Grammars]) -> None:
    encoder = written[1].encoder
    shipped, made = load_file(embedded_model() / "model.safetensors"), written_network(encoder).tensors()
    assert shipped.keys() == made.keys()
    assert all(torch.allclose(shipped[name].float(), weight.half().float(), rtol=2e-3, atol=1e-4) for name, weight in made.items())
    assert Encoder(Tokenizer.from_file(str(embedded_model() / "tokenizer.json")))(TEXT) == encoder(TEXT)
