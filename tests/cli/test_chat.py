"""`harvester chat` over a stream of server-sent events."""

from __future__ import annotations

import json
import sys

import pytest

from harvester.cli.chat import _converse, events, stream_answer
from harvester.cli.client import Client
from harvester.cli.invocation import Invocation
from harvester.errors import EngineError, HarvesterError, KeyRefusedError, RoleError, UsageError


def test_the_answer_is_printed_and_its_times_go_to_stderr(cli, server):
    result = cli("chat", "hi", "--system", "be brief", "--max-tokens", "5")
    assert result.exit_code == 0
    assert result.stdout == "Hello\n"
    assert "first token after" in result.stderr
    body = next(body for _, path, body in server.asked if path == "/v1/chat/completions")
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("tiny", 5, True)


def test_an_answer_may_hold_what_ends_a_line_elsewhere(cli, server):
    chunk = {"choices": [{"delta": {"content": "one\u2028two\x85three"}, "finish_reason": None}]}
    server.chat.insert(1, f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n")
    result = cli("chat", "hi")
    assert result.exit_code == 0, result.output
    assert "one\u2028two\x85three" in result.stdout


@pytest.mark.parametrize("on_terminal", [False, True], ids=["pipe", "terminal"])
def test_a_terminal_shows_what_it_would_obey_of_an_answer(server, monkeypatch, capsys, on_terminal):
    pieces = [{"reasoning": "\x1b[2J"}, {"content": "\x1b"}, {"content": "]52;c;aGk=\x07\n\tdone\x9b"}]
    server.chat[1:3] = [f"data: {json.dumps({'choices': [{'delta': piece}]})}\n\n" for piece in pieces]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    with Client(server.url) as client:
        answer = stream_answer(client, {"model": "tiny"}, show=True)
    exact = "\x1b[2J\n\x1b]52;c;aGk=\x07\n\tdone\x9b"
    shown = "\\x1b[2J\n\\x1b]52;c;aGk=\\x07\n\tdone\\u009b"
    assert capsys.readouterr().out == (shown if on_terminal else exact)
    assert f"{answer.reasoning}\n{answer.content}" == exact


def test_another_model_can_be_asked(cli, server):
    assert cli("chat", "hi", "--model", "small").exit_code == 0
    assert next(body for _, path, body in server.asked if path == "/v1/chat/completions")["model"] == "small"


def test_json_prints_one_object(cli, server):
    answer = json.loads(cli("chat", "hi", "--json").stdout)
    assert (answer["content"], answer["model"], answer["finish_reason"]) == ("Hello", "tiny", "stop")
    assert (answer["reasoning"], answer["text"]) == (None, "Hello")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}
    assert 0 <= answer["ttft_ms"] <= answer["total_ms"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_the_thinking_is_apart_from_the_answer(cli, server, name):
    thoughts = [{"choices": [{"delta": {name: piece}}]} for piece in ("Hm, ", "a greeting.")]
    server.chat[1:1] = [f"data: {json.dumps(chunk)}\n\n" for chunk in thoughts]
    answer = json.loads(cli("chat", "hi", "--json").stdout)
    assert (answer["reasoning"], answer["content"], answer["text"]) == ("Hm, a greeting.", "Hello", "Hello")
    assert cli("chat", "hi").stdout == "Hm, a greeting.\nHello\n"


def test_thinking_and_answer_in_one_piece_are_on_lines_of_their_own(cli, server):
    server.chat[1:1] = [f"data: {json.dumps({'choices': [{'delta': {'reasoning': 'Hm.', 'content': 'Yes. '}}]})}\n\n"]
    assert cli("chat", "hi").stdout == "Hm.\nYes. Hello\n"


def test_the_thinking_is_not_said_again_in_a_conversation(server, monkeypatch):
    server.chat.insert(1, f"data: {json.dumps({'choices': [{'delta': {'reasoning': 'Hm.'}}]})}\n\n")
    lines = iter(["hi", "and?", ""])
    monkeypatch.setattr("builtins.input", lambda shown: next(lines))
    client = Client(server.url)
    _converse(Invocation(), client, "tiny", [], None)
    client.close()
    assert [message["content"] for message in server.asked[-1][2]["messages"]] == ["hi", "Hello", "and?"]


REFUSED = {
    "above a limit": (429, "rate_limit_exceeded"),
    "overloaded": (429, "overloaded"),
    "context full": (400, "context_length_exceeded"),
    "failed": (500, "engine"),
}


@pytest.mark.parametrize(("status", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_question_that_is_refused_does_not_end_the_conversation(server, monkeypatch, capsys, status, code):
    lines = iter(["hi", "and?", "again?", ""])

    def typed(shown: str) -> str:
        line = next(lines)
        server.answers = {"/v1/chat/completions": (status, {"error": {"code": code, "message": "not now"}})} if line == "and?" else {}
        return line

    monkeypatch.setattr("builtins.input", typed)
    with Client(server.url) as client:
        _converse(Invocation(), client, "tiny", [], None)
    assert [message["content"] for message in server.asked[-1][2]["messages"]] == ["hi", "Hello", "again?"]
    assert "error: not now\n" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "code", "kind"), [(401, "invalid_api_key", KeyRefusedError), (403, "insufficient_role", RoleError)])
def test_a_key_that_is_refused_ends_the_conversation(server, monkeypatch, status, code, kind):
    server.answers["/v1/chat/completions"] = (status, {"error": {"code": code, "message": "no"}})
    monkeypatch.setattr("builtins.input", lambda shown: "hi")
    with Client(server.url) as client, pytest.raises(kind):
        _converse(Invocation(), client, "tiny", [], None)


def test_the_prompt_may_come_from_a_pipe(cli, server):
    assert cli("chat", input="hi there\n").stdout == "Hello\n"
    assert server.asked[-1][2]["messages"] == [{"role": "user", "content": "hi there"}]


def test_an_empty_pipe_asks_nothing(cli, server):
    assert cli("chat", input="\n").exit_code == 0
    assert server.asked == []


def test_a_refusal_of_the_engine_is_one_line(cli, server):
    server.answers["/v1/chat/completions"] = (400, {"error": {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}})
    result = cli("chat", "hi")
    assert result.exit_code == 2
    assert result.stderr == "error: the prompt is too long\n"


AWAY = {"error": {"message": "no replica answers; try again in a moment", "type": "server_error", "code": "no_replica"}}


def test_a_chat_before_the_first_replica_answers_is_asked_again(cli, server, monkeypatch):
    server.answers["/v1/chat/completions"] = (503, AWAY)
    monkeypatch.setattr("harvester.cli.chat.time.sleep", lambda seconds: server.answers.clear())
    result = cli("chat", "hi")
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert result.stderr.startswith("No replica answers yet; asking again in 1 s, for up to 15 min\n[first token after")


def test_a_chat_that_no_replica_ever_answers_ends_with_one_line(cli, server, monkeypatch):
    server.answers["/v1/chat/completions"] = (503, AWAY)
    waits: list[float] = []
    monkeypatch.setattr("harvester.cli.chat.time.sleep", waits.append)
    monkeypatch.setattr("harvester.cli.chat.START_S", 30.0)
    result = cli("chat", "hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == f"error: {AWAY['error']['message']}"
    assert sum(waits) == 30


def test_a_chat_waits_as_long_as_the_server_says_the_model_takes_to_load(cli, server, monkeypatch):
    server.answers["/v1/chat/completions"], server.headers["retry-after"] = (503, AWAY), "200"
    waits: list[float] = []

    def loaded_at_the_third_request(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            server.answers.clear()

    monkeypatch.setattr("harvester.cli.chat.time.sleep", loaded_at_the_third_request)
    result = cli("chat", "hi")
    assert (result.exit_code, result.stdout, waits) == (0, "Hello\n", [200.0, 200.0])
    assert result.stderr.count("asking again") == 1
    assert "asking again in 200 s, for up to 15 min" in result.stderr


def test_a_chat_does_not_wait_for_a_model_that_takes_too_long(cli, server, monkeypatch):
    server.answers["/v1/chat/completions"], server.headers["retry-after"] = (503, AWAY), "1000"
    monkeypatch.setattr("harvester.cli.chat.time.sleep", lambda seconds: pytest.fail("it waited"))
    assert cli("chat", "hi").exit_code == 1


def test_a_stream_that_breaks_off_fails(cli, server):
    server.chat = server.chat[:2]
    result = cli("chat", "hi", "--json")
    assert result.exit_code == 1
    assert "ended before it was complete" in result.stderr
    assert result.stdout == ""


LINES = {
    "error event": (['data: {"error": {"message": "out of memory", "code": 500}}'], HarvesterError, "out of memory"),
    "error of ours": (['data: {"error": {"message": "no", "code": "wrong_use"}}'], UsageError, "no"),
    "no JSON": (["data: <html>"], HarvesterError, "not JSON"),
    "nothing": ([], EngineError, "ended before"),
}


@pytest.mark.parametrize(("lines", "kind", "message"), LINES.values(), ids=LINES.keys())
def test_a_bad_stream_is_an_error(lines, kind, message):
    with pytest.raises(kind, match=message):
        list(events(lines))


def test_comments_and_other_fields_of_a_stream_are_skipped():
    assert list(events([": ping", "event: x", "", 'data: {"a": 1}', "data: [DONE]", "data: {"])) == [{"a": 1}]
