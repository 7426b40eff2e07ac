"""Files and batches with the official client, against the real server; and service tiers of chat."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from jobs.tasks.load import resolve_task
from jobs.tasks.template import build_messages
from tests.real_server import RealServer, ids
from tests.serve.test_jobs import harvester

pytestmark = pytest.mark.serve
PATIENCE_S = 120.0
ENDED = {"completed", "failed", "expired", "cancelled"}


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


def write(path: Path, bodies: list[dict[str, Any]], url: str = "/v1/chat/completions") -> Path:
    lines = [json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}) for i, body in enumerate(bodies)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def chat(model: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **fields}


def start(client: OpenAI, path: Path, endpoint: Any = "/v1/chat/completions", **fields: Any) -> Batch:
    file = client.files.create(file=path, purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


def until(client: OpenAI, batch: Batch, statuses: set[str]) -> Batch:
    end_s = time.monotonic() + PATIENCE_S
    while batch.status not in statuses:
        assert time.monotonic() < end_s, f"{batch.id} is still {batch.status}"
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def lines(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    return {item["custom_id"]: item for item in map(json.loads, client.files.content(file_id).text.splitlines())}


def test_the_whole_flow_with_tools_schemas_logprobs_and_several_choices(
    server: RealServer, client: OpenAI, model: str, tmp_path: Path
) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    schema = {"type": "object", "properties": {"year": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["year"]}
    bodies = [
        chat(model, "Hello"),
        chat(model, "Hello", n=2, temperature=1.0, seed=1),
        chat(model, "Hello", logprobs=True, top_logprobs=2),
        chat(model, "When?", max_tokens=40, response_format={"type": "json_schema", "json_schema": {"name": "when", "schema": schema}}),
        chat(
            model,
            "",
            messages=build_messages(resolve_task("extract", options={"schema": parameters}), "text", {"text": "city: Oslo"}),
            max_tokens=60,
            tools=[{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
            tool_choice={"type": "function", "function": {"name": "weather"}},
        ),
        chat(model, "Hello", temperature=9),
        chat(model, "Hello", stream=True),
        chat(model, "word " * 20_000),
    ]
    done = until(client, start(client, write(tmp_path / "in.jsonl", bodies), metadata={"who": "test"}), ENDED)
    assert (done.status, done.model, done.metadata) == ("completed", model, {"who": "test"})
    assert done.request_counts is not None
    assert done.usage is not None
    assert done.request_counts.model_dump() == {"total": 8, "completed": 5, "failed": 3}
    good, bad = lines(client, done.output_file_id), lines(client, done.error_file_id)
    answers = {name: item["response"]["body"] for name, item in good.items()}
    online = client.chat.completions.create(**bodies[0])
    assert answers["r0"]["choices"][0]["message"]["content"] == online.choices[0].message.content
    assert answers["r0"]["service_tier"] == "flex"
    assert len(answers["r1"]["choices"]) == 2
    assert len(answers["r2"]["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert isinstance(json.loads(answers["r3"]["choices"][0]["message"]["content"])["year"], int)
    assert answers["r4"]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert set(bad) == {"r5", "r6", "r7"}
    assert {item["response"]["status_code"] for item in bad.values()} == {400}
    assert all(item["response"]["body"]["error"]["message"] for item in bad.values())
    assert done.usage.output_tokens == sum(answer["usage"]["completion_tokens"] for answer in answers.values())
    shown = json.loads(harvester(server, "show", done.id, "--json"))
    assert (shown["state"], shown["rows_ok"], shown["rows_error"]) == ("completed", 5, 3)
    query = f"select custom_id, output->'choices'->0->>'finish_reason' as why from results('{done.id}') where custom_id = 'r0'"
    assert json.loads(harvester(server, "sql", query, "--format", "json")) == [{"custom_id": "r0", "why": "length"}]


def test_completions_are_batched(client: OpenAI, model: str, tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"model": model, "prompt": f"Number {i}", "max_tokens": 4} for i in range(6)], "/v1/completions")
    done = until(client, start(client, path, "/v1/completions"), ENDED)
    assert done.status == "completed"
    assert all(item["response"]["body"]["choices"][0]["text"] is not None for item in lines(client, done.output_file_id).values())


def test_a_batch_is_cancelled_and_keeps_its_answers(server: RealServer, client: OpenAI, model: str, tmp_path: Path) -> None:
    bodies = [chat(model, f"Tell me of {i}. " * 40, max_tokens=200, ignore_eos=True) for i in range(200)]
    batch = start(client, write(tmp_path / "many.jsonl", bodies))
    until(client, batch, {"in_progress"})
    server.wait_rows(batch.id, 4)
    client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = until(client, batch, ENDED)
    assert done.status == "cancelled"
    kept = lines(client, done.output_file_id)
    assert 4 <= len(kept) < 200
    assert done.request_counts is not None
    assert done.request_counts.completed == len(kept) >= len(ids(server.state, batch.id))
    listed = [item.id for item in client.batches.list(limit=2)]
    assert batch.id in listed


def test_a_batch_goes_on_when_what_keeps_it_is_killed(server: RealServer, client: OpenAI, model: str, tmp_path: Path) -> None:
    batch = start(
        client, write(tmp_path / "in.jsonl", [chat(model, f"Tell me of {i}.", max_tokens=40, ignore_eos=True) for i in range(24)])
    )
    server.kill_one("batches app")
    assert server.get(f"/v1/batches/{batch.id}")["object"] == "batch", "waits until the next one is there"
    done = until(client, batch, ENDED)
    assert (done.status, set(lines(client, done.output_file_id))) == ("completed", {f"r{i}" for i in range(24)})


def test_the_wrong_line_is_named(client: OpenAI, model: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", [chat(model, "a"), chat("another", "b")])
    done = until(client, start(client, path), ENDED)
    assert done.errors is not None
    assert [(error.code, error.line) for error in done.errors.data or ()] == [("mismatched_model", 2)]


def test_a_large_upload_comes_through_whole(client: OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as out:
        for number in range(60):
            out.write(bytes([number]) * 1_000_000)
    file = client.files.create(file=path, purpose="batch")
    assert file.bytes == 60_000_000
    assert client.files.content(file.id).read() == path.read_bytes()
    assert client.files.delete(file.id).deleted


def test_paths_beside_the_files_are_still_chats(server: RealServer) -> None:
    listed = httpx.get(f"{server.url}/v1/models", timeout=30)
    assert listed.status_code == 200
    assert all(card["root"] == card["id"] for card in listed.json()["data"]), "no folder of the server's machine"
    assert httpx.get(f"{server.url}/v1/filesystem", timeout=30).status_code == 404
    answer = httpx.get(f"{server.url}/v1/files/..%2f..%2fledger.sqlite/content", timeout=30)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


# -- service tiers ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "used"), [("flex", "flex"), ("priority", "priority"), ("auto", "default"), ("default", "default")])
def test_the_tier_used_is_in_the_answer(client: OpenAI, model: str, asked: Any, used: str) -> None:
    body = chat(model, "Hello")
    plain = client.chat.completions.create(**body)
    whole = client.chat.completions.create(**body, service_tier=asked)
    assert (plain.service_tier, whole.service_tier) == ("default", used)
    chunks = list(client.chat.completions.create(**body, service_tier=asked, stream=True))
    assert {chunk.service_tier for chunk in chunks} == {used}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content == plain.choices[0].message.content


def test_a_flex_request_is_offline_work(server: RealServer, client: OpenAI, model: str) -> None:
    def queued(kind: str) -> float:
        found = [line for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines() if line.startswith("harvester_queue")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if "_count" in line and f'"{kind}"' in line)

    before = queued("offline"), queued("online")
    list(client.chat.completions.create(**chat(model, "Hello"), service_tier="flex", stream=True))
    assert (queued("offline"), queued("online")) == (before[0] + 1, before[1])


@pytest.mark.parametrize("tier", ["flex", "default"])
def test_what_only_jobs_may_say_is_refused_of_a_chat(client: OpenAI, model: str, tier: Any) -> None:
    """A weight of no sense would end the engine."""
    extra = {"vllm_xargs": {"job": "x", "slice": "no number", "weight": -1}}
    with pytest.raises(openai.BadRequestError, match="names job, slice, weight"):
        client.chat.completions.create(**chat(model, "Hello"), service_tier=tier, extra_body=extra)


def test_an_unknown_tier_is_refused(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="use one of: auto, default, priority, flex"):
        client.chat.completions.create(**chat(model, "Hello"), service_tier="turbo")  # type: ignore[call-overload]


def test_a_prompt_beyond_the_context_is_refused_as_openai_refuses_it(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**chat(model, "word " * 20_000))
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**chat("gpt-none", "Hello"))
    assert [(error.value.code, error.value.type) for error in (long, unknown)] == [
        ("context_length_exceeded", "invalid_request_error"),
        ("model_not_found", "invalid_request_error"),
    ]


def test_a_key_has_its_own_default_tier(server: RealServer, model: str) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="nightly") as client:
        tiers = [client.chat.completions.create(**chat(model, "Hello")).service_tier]
        tiers += [client.chat.completions.create(**chat(model, "Hello"), service_tier=asked).service_tier for asked in ("auto", "default")]
        tiers.append(client.completions.create(model=model, prompt="Hello", max_tokens=2).model_extra["service_tier"])  # type: ignore[index]
    assert tiers == ["flex", "flex", "default", "flex"]
