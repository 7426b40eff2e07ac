"""What `harvester submit` sends, prints and starts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.cli.server import local
from jobs.forecast.lengths import Lengths, counted
from jobs.ledger.history import task_key
from jobs.tasks.load import resolve_task
from tests.fakes.http_server import job_view
from tests.fakes.ledger_file import ledger_file


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    path = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"title": [f"t{number}" for number in range(8)], "text": ["word " * 20] * 8}), path)
    return path


def sent(server) -> dict:
    return next(body for method, path, body in server.asked if (method, path) == ("POST", "/api/jobs"))


def test_json_prints_one_line_with_the_id(cli, server, docs):
    result = cli("submit", docs, "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    line = json.loads(result.stdout)
    assert (line["id"], line["created"], line["state"], line["rows_total"]) == ("docs-7f3a", True, "completed", 4)


def test_the_job_asked_for_is_what_the_options_say(cli, server, docs, monkeypatch):
    monkeypatch.chdir(docs.parent)
    cli(
        "submit", "docs.parquet", "--task", "classify", "--labels", "a,b", "--column", "text", "--keep", "title,text", "--id-column",
        "title", "--image", "photo", "--image", "scan", "--model", "tiny", "--adapter", "polite", "--max-tokens", "7", "--temperature",
        "0.5", "--thinking", "64", "--chat-template-kwargs", '{"reasoning_effort": "low"}', "--on-long", "split", "--max-error-rate", "0.2",
        "--weight", "3", "--deadline", "2286-11-20T17:46:40Z", "--new",
    )  # fmt: skip
    assert sent(server) == {
        "source": {
            "uri": str(docs),
            "table": None,
            "query": None,
            "where": None,
            "sample": None,
            "seed": 0,
            "limit": None,
            "encoding": None,
            "ragged": False,
        },
        "task": "classify",
        "task_inline": None,
        "options": {"labels": ["a", "b"]},
        "column": "text",
        "keep": ["title", "text"],
        "id_column": "title",
        "model": "tiny",
        "max_tokens": 7,
        "temperature": 0.5,
        "thinking": 64,
        "chat_template_kwargs": {"reasoning_effort": "low"},
        "images": ["photo", "scan"],
        "adapter": "polite",
        "on_long": "split",
        "max_error_rate": 0.2,
        "weight": 3.0,
        "deadline_at_s": 10_000_000_000.0,
        "new": True,
    }


SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
IMPLIED = {
    "nothing": ((), "summarize"),
    "prompt": (("--prompt", "Say {text}"), "ask"),
    "labels": (("--labels", "a,b"), "classify"),
    "to": (("--to", "German"), "translate"),
}


@pytest.mark.parametrize(("options", "task"), IMPLIED.values(), ids=IMPLIED.keys())
def test_an_option_of_one_task_says_which_is_meant(cli, server, docs, options, task):
    cli("submit", docs, *options)
    assert sent(server)["task"] == task


OWN_PROMPTS = {
    "labels": (("--labels", "yes,no"), {"labels": ("yes", "no"), "answer": "choice"}),
    "labels as an option": (("--option", "labels=yes,no"), {"labels": ("yes", "no"), "answer": "choice"}),
    "schema": (("--schema", "{dir}/s.json"), {"json_schema": SCHEMA, "answer": "json", "max_tokens": 512}),
}


@pytest.mark.parametrize(("options", "expected"), OWN_PROMPTS.values(), ids=OWN_PROMPTS.keys())
def test_a_prompt_of_ones_own_is_answered_in_the_shape_that_is_asked_for(cli, server, docs, options, expected):
    (docs.parent / "s.json").write_text(json.dumps(SCHEMA))
    words = ["submit", docs, "--prompt", "Is it about {title}? {text}", *(option.format(dir=docs.parent) for option in options)]
    planned = cli(*words, "--dry-run", "--json")
    assert (planned.exit_code, json.loads(planned.stdout)["task"]) == (0, "ask"), planned.stderr
    assert cli(*words).exit_code == 0
    body = sent(server)
    task = resolve_task(body["task"], inline=body["task_inline"], options=body["options"])
    assert task.prompt == "Is it about {title}? {text}"
    assert {name: getattr(task, name) for name in expected} == expected


def test_a_prompt_with_labels_and_a_schema_is_wrong_use(cli, docs):
    (docs.parent / "s.json").write_text(json.dumps(SCHEMA))
    result = cli("submit", docs, "--prompt", "{text}", "--labels", "a,b", "--schema", docs.parent / "s.json")
    assert result.exit_code == 2
    assert "task ask has labels and answers with json" in result.stderr


def test_keep_none_keeps_no_input_column(cli, server, docs):
    cli("submit", docs, "--keep", "none")
    assert sent(server)["keep"] == []


def test_a_task_file_is_sent_by_its_content(cli, server, docs, tmp_path):
    (tmp_path / "mood.yaml").write_text("prompt: 'Mood of {text}?'\nmax_tokens: 3\n")
    cli("submit", docs, "--task", tmp_path / "mood.yaml")
    assert sent(server)["task"] == "mood"
    assert sent(server)["task_inline"] == {"name": "mood", "prompt": "Mood of {text}?", "max_tokens": 3}


def test_a_task_that_is_given_wins_over_the_one_that_an_option_says(cli, server, docs, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("prompt: 'Into {to}: {text}'\noptions: {to: {required: true}}\n")
    cli("submit", docs, "--task", mine, "--to", "German")
    assert (sent(server)["task"], sent(server)["options"]) == ("mine", {"to": "German"})


def test_a_schema_file_is_sent_by_its_content(cli, server, docs, tmp_path):
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    cli("submit", docs, "--schema", tmp_path / "s.json")
    assert sent(server)["options"] == {"schema": schema}
    assert sent(server)["task"] == "extract"


BAD = {
    "schema that is no object": (("--schema", "{dir}/list.json"), "holds a list"),
    "schema that is no JSON": (("--schema", "{dir}/docs.parquet"), "schema"),
    "task file too large": (("--task", "{dir}/large.yaml"), "at most 1,048,576 are read"),
    "table and query": (("--table", "t", "--query", "select 1"), "--table and --query"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_here_is_said_before_any_server_is_asked(cli, server, docs, options, message):
    (docs.parent / "list.json").write_text("[]")
    (docs.parent / "large.yaml").write_text("#" * (1 << 20) + "\nprompt: x")
    result = cli("submit", docs, *(option.format(dir=docs.parent) for option in options))
    assert result.exit_code == 2
    assert message in result.stderr
    assert server.asked == []


def test_a_misspelt_source_is_answered_with_the_nearest_file(cli, docs):
    result = cli("submit", docs.with_name("dcos.parquet"))
    assert result.exit_code == 2
    assert f"did you mean {docs}?" in result.stderr


def test_a_glob_must_match_something(cli, server, docs):
    assert cli("submit", docs.parent / "*.parquet").exit_code == 0
    assert sent(server)["source"]["uri"] == str(docs.parent / "*.parquet")
    assert "no file matches" in cli("submit", docs.parent / "*.csv").stderr


def test_an_address_is_sent_as_it_is(cli, server):
    cli("submit", "s3://bucket/docs.parquet")
    assert sent(server)["source"]["uri"] == "s3://bucket/docs.parquet"


def test_a_job_found_is_said_to_be_the_same(cli, server, docs):
    server.created = False
    shown = cli("submit", docs).stdout
    assert "already exists for this request" in shown
    assert "--new makes another" in shown


def test_notes_and_next_commands_are_printed(cli, server, docs):
    server.views = [job_view(notes=("The text is in column text.",), state="queued")]
    shown = cli("submit", docs).stdout
    assert "Note: The text is in column text." in shown
    assert "harvester watch docs-7f3a" in shown


def test_watch_follows_the_job_and_prints_how_it_ended(cli, server, docs):
    running = job_view(state="running", rows_ok=1, eta_s=9.0)
    server.views = [running, running, job_view(state="running", rows_ok=2), job_view()]
    result = cli("submit", docs, "--watch", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["rows_ok"] == 4
    assert result.stderr.splitlines() == [
        "docs-7f3a running, 1/4 rows (25%), 50 tokens/s, 9 s left",
        "docs-7f3a running, 2/4 rows (50%), 50 tokens/s",
        "docs-7f3a completed, 4/4 rows (100%), 50 tokens/s",
    ]


def test_watch_exits_with_1_where_the_job_fails(cli, server, docs):
    server.views = [job_view(state="queued"), job_view(state="failed", message="the source changed")]
    result = cli("submit", docs, "--watch", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["state"] == "failed"


def test_without_a_server_an_embedded_one_runs_the_job_to_its_end_and_is_stopped(cli, silent_server, docs, monkeypatch, state):
    told: list[Any] = []

    class Embedded:
        def __init__(self, state_dir, model):
            told.append(("made", state_dir, model))
            self.url = silent_server.url

        def __enter__(self):
            return self

        def __exit__(self, *error):
            told.append("stopped")

    monkeypatch.setattr(local, "EmbeddedServer", Embedded)
    silent_server.views = [job_view(state="queued"), job_view()]
    result = cli("submit", docs, "--model", "big", "--json")
    assert result.exit_code == 0
    assert told == [("made", state, "big"), "stopped"]
    assert json.loads(result.stdout)["state"] == "completed"
    assert "starting an embedded one for this command" in result.stderr


def test_a_dry_run_counts_without_a_server_and_makes_nothing(cli, docs, state):
    result = cli("submit", docs, "--dry-run", "--json", "--max-tokens", "10")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["rows"], found["column"], found["most_output_tokens"], found["estimated_s"]) == (8, "text", 80, None)
    assert 8 * 25 < found["estimated_prompt_tokens"] < 8 * 125
    assert not state.exists()


def test_a_dry_run_says_that_its_tokens_are_an_estimate_and_its_time_unknown(cli, docs):
    shown = cli("submit", docs, "--dry-run").stdout
    assert "an estimate: characters / 4 of 8 rows" in shown
    assert "unknown" in shown


def test_a_dry_run_takes_the_rate_of_a_server_that_has_one(cli, server, docs):
    found = json.loads(cli("submit", docs, "--dry-run", "--json").stdout)
    assert found["tokens_per_s"] == 50.0
    assert found["estimated_s"] == round((found["estimated_prompt_tokens"] + found["most_output_tokens"]) / 50.0, 1)
    assert [path for _, path, _ in server.asked if path.startswith("/api/jobs")] == ["/api/jobs?limit=100"]
    assert not any(method == "POST" and path == "/api/jobs" for method, path, _ in server.asked)


def test_a_dry_run_on_a_model_or_adapter_that_the_server_does_not_have_is_wrong_use(cli, server, docs):
    server.answers["/api/server"] = (200, {**server.info(), "adapters": ["polite"], "models": {"small": {"adapters": []}}})
    other = cli("submit", docs, "--dry-run", "--model", "other")
    assert (other.exit_code, other.stderr) == (2, "error: this server runs tiny, small, not other; remove --model, or serve other\n")
    adapter = cli("submit", docs, "--dry-run", "--adapter", "polit")
    assert (adapter.exit_code, adapter.stderr) == (2, "error: tiny has no adapter 'polit'; did you mean polite?\n")
    assert "small is served without adapters" in cli("submit", docs, "--dry-run", "--model", "small", "--adapter", "polite").stderr
    assert cli("submit", docs, "--dry-run", "--adapter", "polite").exit_code == 0


def test_a_dry_run_of_a_source_without_text_is_wrong_use(cli, tmp_path):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "numbers.parquet")
    result = cli("submit", tmp_path / "numbers.parquet", "--dry-run")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


@pytest.fixture
def experienced(server, docs):
    """A server that harvested in the last hours, has a price, and ran this very task before."""
    now_s = time.time()
    server.tables["harvest"] = pa.table(
        {"model": ["tiny"] * 2, "hour_s": [now_s - 3600, now_s - 60], "tokens": [6000, 2000], "busy_s": [60.0, 40.0]}
    )
    lengths = Lengths()
    lengths.learn(counted([(60, 5)] * 30))
    key = task_key(resolve_task("summarize", max_tokens=10), "tiny")
    server.tables["lengths"] = pa.table({"task_key": ["other", key], "counts": ["{}", json.dumps(lengths.to_json())]})
    server.answers["/tokenize"] = (200, {"count": 100})
    price = {"prompt_per_million": 1000.0, "output_per_million": 5000.0, "currency": "EUR"}
    server.answers["/api/server"] = (200, {**server.info(), "price": price})
    return server


def test_a_dry_run_tells_time_by_the_last_days_tokens_by_the_tokenizer_and_the_price(cli, experienced, docs):
    found = json.loads(cli("submit", docs, "--dry-run", "--json", "--max-tokens", "10").stdout)
    assert (found["estimated_prompt_tokens"], found["counted_rows"]) == (800, 8)
    assert (found["estimated_output_tokens"], found["most_output_tokens"]) == (40, 80)
    assert (found["tokens_per_s"], found["estimated_s"]) == (80.0, 10.5)
    assert found["estimated_low_s"] < 10.5 < found["estimated_high_s"]
    assert found["price"] == {"amount": 1.0, "currency": "EUR"}


def test_a_dry_run_reads_as_a_person_reads(cli, experienced, docs):
    shown = cli("submit", docs, "--dry-run", "--max-tokens", "10").stdout
    assert "about 800 (an estimate: the server's tokenizer on 8 of 8 rows)" in shown
    assert "about 40, as this task's rows before; at most 80" in shown
    assert "at the 80 tokens/s of the last days" in shown
    assert "about 1.00 EUR" in shown


def test_a_dry_run_without_a_server_takes_what_the_last_one_left(cli, docs, state):
    state.mkdir()
    with ledger_file(state) as file:
        file.run("add_harvest", ["tiny", time.time() - 600, 10, 5000, 50.0])
    found = json.loads(cli("submit", docs, "--dry-run", "--json", "--model", "tiny", "--max-tokens", "10").stdout)
    assert (found["tokens_per_s"], found["price"], found["counted_rows"]) == (100.0, None, 0)
    assert found["estimated_s"] == pytest.approx((found["estimated_prompt_tokens"] + 80) / 100, abs=0.1)


TONE = """\
prompt: 'Rewrite in a {tone} tone, in {words} words: {text}'
options:
  tone: {description: How it should sound., required: true}
  words: {description: How long it should be., default: 40}
"""


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    path = tmp_path / "tone.yaml"
    path.write_text(TONE)
    return path


def test_a_task_files_own_options_are_given_one_by_one(cli, server, docs, tone):
    assert cli("submit", docs, "--task", tone, "--option", "tone=calm = kind", "--option", "words=20").exit_code == 0
    assert sent(server)["options"] == {"tone": "calm = kind", "words": "20"}
    assert sent(server)["task_inline"]["options"]["tone"]["required"] is True


def test_an_option_of_a_built_in_task_may_be_given_so_too(cli, server, docs):
    cli("submit", docs, "--task", "translate", "--option", "to=German")
    assert sent(server)["options"] == {"to": "German"}


def test_a_dry_run_takes_task_options_without_a_server(cli, docs, tone):
    missing = cli("submit", docs, "--task", tone, "--dry-run")
    assert missing.exit_code == 2
    assert "task tone needs option tone: How it should sound.; give it with --option tone=VALUE" in missing.stderr
    done = cli("submit", docs, "--task", tone, "--option", "tone=calm", "--dry-run", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 8


WRONG_OPTIONS = {
    "no such option": (("tone=calm", "tne=x"), "task tone has no option tne; did you mean tone? Its options: tone, words"),
    "far from all": (("tone=calm", "zzz=x"), "task tone has no option zzz; its options: tone, words"),
    "another type": (("tone=calm", "words=many"), "task tone: option words takes a whole number, given 'many'"),
    "no value": (("tone",), "--option tone is not NAME=VALUE"),
    "no name": (("=calm",), "--option =calm is not NAME=VALUE"),
    "twice": (("tone=calm", "tone=kind"), "option tone is given twice"),
    "not given": ((), "task tone needs option tone"),
}


@pytest.mark.parametrize(("words", "message"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS.keys())
def test_a_wrong_task_option_is_said_before_any_server_is_asked(cli, server, docs, tone, words, message):
    result = cli("submit", docs, "--task", tone, *(part for word in words for part in ("--option", word)))
    assert result.exit_code == 2
    assert message in result.stderr
    assert server.asked == []


WRONG_OF_BUILT_IN = {
    "no such option": (("--to", "German", "--option", "tone=x"), "task translate has no option tone"),
    "an option of another task": (("--task", "classify", "--labels", "a,b", "--to", "German"), "task classify has no option to"),
    "not given": (("--task", "classify"), "task classify needs option labels"),
    "no labels": (("--labels", "one"), "task classify: at least two labels are needed"),
    "no such task": (("--task", "sumarize"), "unknown task 'sumarize'"),
}


@pytest.mark.parametrize(("words", "message"), WRONG_OF_BUILT_IN.values(), ids=WRONG_OF_BUILT_IN.keys())
def test_a_wrong_option_of_a_built_in_task_starts_no_server(cli, docs, monkeypatch, words, message):
    monkeypatch.setattr(local, "EmbeddedServer", lambda *_: pytest.fail("a server was started"))
    result = cli("submit", docs, *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_option_with_a_flag_of_its_own_is_given_once(cli, server, docs):
    result = cli("submit", docs, "--to", "German", "--option", "to=French", "--task", "translate")
    assert result.exit_code == 2
    assert "option to is given twice: by --to and by --option" in result.stderr
