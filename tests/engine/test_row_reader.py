"""What vLLM's reasoning parser is told of a row, and how far its answer is believed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
    from vllm.sampling_params import StructuredOutputsParams

    from harvester.engine.frontend.engine import Generated
    from harvester.engine.frontend.offline import OfflineEngine
    from harvester.engine.vllm.frontend.answers import guided_by
    from harvester.engine.vllm.frontend.serving import OfflineApi, Read, Reader, _body

from harvester.access_config import TierConfig
from harvester.errors import BusyError, UsageError
from jobs.engine import ApiCall, Completion, Prompt, Rendering, RowError, RowRequest
from jobs.hint import EVEN
from jobs.usage import NONE_USED

pytestmark = pytest.mark.engine

END = 7  # the token of an end of thinking
ASKED, OPENING = [1, 2, END, 3, 4], [3, 4]  # a row whose text has that token, and the tokens that the template puts behind it


class Parser:
    """Behaves as vLLM's parsers: gpt-oss's wraps structured outputs, and an end of thinking is looked for in the whole prompt."""

    reasoning_parser = object()

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        held = request.structured_outputs
        if held is not None:
            request.structured_outputs = StructuredOutputsParams(structural_tag=f"final<{held.json or held.choice}>")
        return request

    def is_reasoning_end(self, token_ids: list[int]) -> bool:
        return END in token_ids

    def set_prompt_token_ids(self, token_ids: list[int]) -> None:
        pass

    def parse(self, text: str, request: Any, model_output_token_ids: list[int]) -> tuple[str | None, str | None, None]:
        thought, mark, answer = text.partition("</think>")
        return (thought, answer, None) if mark else (None, text, None)


def reader(opening: list[int] = OPENING, **asked: Any) -> Reader:
    parser: Any = Parser()
    return Reader(parser, {}, ASKED, None, opening, guided_by(asked.get("choices"), asked.get("json_schema")))


def generated(text: str, finish_reason: str) -> Generated:
    return Generated(text, finish_reason, [9], NONE_USED)


def test_the_parser_sees_what_the_answer_is_held_to() -> None:
    def held(**asked: Any) -> Any:
        found: Any = reader(**asked).sampling["structured_outputs"]
        return found.structural_tag

    assert held(choices=("yes", "no")) == "final<['yes', 'no']>"
    assert held(json_schema={"type": "object"}) == "final<{'type': 'object'}>"
    assert reader().sampling["structured_outputs"] is None


def test_a_mark_in_the_text_of_a_row_ends_no_thinking() -> None:
    assert reader().engine["reasoning_ended"] is False
    assert reader([END]).engine["reasoning_ended"] is True, "one that the template itself writes does"


def test_thinking_that_was_cut_off_is_no_answer() -> None:
    assert reader().read(generated("I wonder", "length")) == Read("", "I wonder")
    assert reader().read(generated("I wonder</think>yes", "length")) == Read("yes", "I wonder")
    assert reader().read(generated("yes", "stop")) == Read("yes", None)


class Engine:
    """In the place of an engine whose requests fail: no real one does so when asked to."""

    def __init__(self, *ends: Generated | Exception) -> None:
        self.ends, self.names, self.rendered = list(ends), list[str](), list[Any]()
        self.model_config = SimpleNamespace(get_diff_sampling_param=dict, encoder_config=None)

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text: [1, 2])

    async def complete(self, name: str, token_ids: list[int], **given: Any) -> Generated:
        self.names.append(name)
        self.rendered.append(given["rendered"])
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


async def answered(engine: Engine, monkeypatch: pytest.MonkeyPatch, images: tuple[str, ...] = ()) -> Completion:
    monkeypatch.setattr("harvester.engine.frontend.offline.BUSY_WAIT_S", 0.0)
    given: Any = engine
    without: Any = SimpleNamespace(reader=lambda *given: None, adapter=lambda name: None, template_kwargs=lambda rendering: {}, marks=())
    offline = OfflineEngine(given, without, without, None, "tiny", 4, None)
    prompt = Prompt(({"role": "user", "content": "Hello"},), 8, 0.0, rendering=Rendering(is_plain=not images, images=images))
    try:
        return await offline.complete(RowRequest("row", prompt))
    finally:
        offline.close()


async def test_a_request_that_failed_in_the_engine_is_asked_once_more_and_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(generated("", "error"), generated("yes", "stop"))
    assert (await answered(engine, monkeypatch)).text == "yes"
    assert engine.names == ["row", "row-again"]
    with pytest.raises(RowError) as refused:
        await answered(Engine(generated("", "error"), generated("half", "abort")), monkeypatch)
    assert refused.value.code == "engine_failed"


async def test_a_request_with_an_image_that_failed_is_rendered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM sends an image once; where the engine core no longer has it, the request ends as an error, and the next is to bring it."""
    engine = Engine(generated("", "error"), generated("yes", "stop"))
    shown: list[dict[str, Any]] = []

    async def render(*given: Any) -> dict[str, Any]:
        shown.append({"prompt_token_ids": [1, 2], "number": len(shown)})
        return shown[-1]

    monkeypatch.setattr("harvester.engine.frontend.offline.Images", lambda *given: SimpleNamespace(prompt=render))
    assert (await answered(engine, monkeypatch, images=("data:image/png;base64,AA",))).text == "yes"
    assert engine.rendered == shown
    assert len(shown) == 2


async def test_a_full_queue_is_waited_for_and_a_refusal_is_the_row_s(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(BusyError("the engine is busy"), generated("yes", "stop"))
    assert (await answered(engine, monkeypatch)).text == "yes"
    assert engine.names == ["row", "row-1"]
    with pytest.raises(RowError) as refused:
        await answered(Engine(UsageError("too long")), monkeypatch)
    assert (refused.value.code, refused.value.message) == ("refused", "too long")


class Serving:
    """In the place of vLLM's chat: fails with each status in turn, then answers."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.names = list(statuses), list[str]()

    async def create_chat_completion(self, request: Any) -> Any:
        self.names.append(request.request_id)
        if self.statuses:
            status = self.statuses.pop(0)
            return ErrorResponse(error=ErrorInfo(message=f"status {status}", type="Error", code=status))
        usage = SimpleNamespace(prompt_tokens=1, prompt_tokens_details=None, completion_tokens=1)
        return SimpleNamespace(choices=[SimpleNamespace(finish_reason="stop")], usage=usage, model_dump_json=lambda: "{}")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("statuses", "status", "names"),
    [
        ((), 200, ["row"]),
        ((500,), 200, ["row", "row-1"]),
        ((503, 500, 429), 200, ["row", "row-1", "row-2", "row-3"]),
        ((500, 500), 500, ["row", "row-1"]),
        ((400,), 400, ["row"]),
        ((501,), 501, ["row"]),
    ],
    ids=str,
)
async def test_a_request_of_a_batch_that_failed_in_the_engine_is_sent_once_more(
    statuses: tuple[int, ...], status: int, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a text row's is. vLLM sends an image once; where the engine core no longer has it, only a second request brings it."""
    monkeypatch.setattr("harvester.engine.vllm.frontend.serving.BUSY_WAIT_S", 0.0)
    serving, llm = Serving(*statuses), SimpleNamespace(errored=False)
    app: Any = SimpleNamespace(state=SimpleNamespace(openai_serving_chat=serving))
    api = OfflineApi(app, cast(Any, llm), TierConfig())
    body = {"model": "tiny", "messages": [{"role": "user", "content": [IMAGE]}]}
    done = await api.respond("row", ApiCall("/v1/chat/completions", body), EVEN)
    assert (done.status_code, serving.names) == (status, names)


def test_half_a_surrogate_pair_in_a_response_stays_escaped() -> None:
    request = ChatCompletionRequest.model_validate({"messages": [], "user": "\ud83d"})
    assert '"\\ud83d"' in _body(request)
