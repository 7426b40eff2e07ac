"""Requests that schemathesis makes of each application's own OpenAPI document: none is answered by 5xx or by what is not documented."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok

from jobs.config import BatchConfig
from jobs.testing import last_content
from tests.fakes.bureau import Bureau, jsonl, line
from tests.fakes.office import MODEL, Office

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
FUZZ = settings(derandomize=True, database=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
SETTINGS = SchemathesisConfig.from_dict({"cache": {"enabled": False}})  # else it may write .schemathesis/ where the tests run
# Operations that refuse some requests by their form, and those that take any text.
JOBS = ("POST /jobs", "POST /plan", "PATCH /jobs/{job_id}", "POST /sql", "POST /profile", "POST /scale")
JOBS_FREE = (
    "GET /server",
    "GET /tasks",
    "GET /jobs",
    "GET /jobs/{job_id}",
    "DELETE /jobs/{job_id}",
    "POST /jobs/{job_id}/{verb}",
    "GET /ledger/{name}",
    "GET /harvested",
)
OPENAI = ("POST /v1/files", "GET /v1/files", "POST /v1/batches", "GET /v1/batches")
OPENAI_FREE = (
    "GET /v1/files/{file_id}",
    "DELETE /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "GET /v1/batches/{batch_id}",
    "POST /v1/batches/{batch_id}/cancel",
)


class Stage:
    """An application and the tasks behind it, on one event loop that goes on while a request is answered."""

    def __init__(self, http: httpx.AsyncClient, document: str, known: dict[str, list[Any]]) -> None:
        self.loop = asyncio.Runner()
        self.http = http
        self.working: list[asyncio.Task[Any]] = []
        self.known = known  # existing values, by the name of a parameter or of a field
        self.schema = schemathesis.openapi.from_dict(self.loop.run(http.get(document)).json(), config=SETTINGS)

    def send(self, case: Case) -> httpx.Response:
        wire = requests.Request(**case.as_transport_kwargs(base_url=str(self.http.base_url))).prepare()
        headers = [
            (name.encode("latin-1"), value if isinstance(value, bytes) else value.encode("latin-1")) for name, value in wire.headers.items()
        ]
        body: Any = wire.body.encode() if isinstance(wire.body, str) else wire.body
        return self.loop.run(self.http.send(httpx.Request(wire.method or "", wire.url or "", headers=headers, content=body or b"")))

    def operations(self) -> set[str]:
        found = [each.ok() for each in self.schema.get_all_operations() if isinstance(each, Ok)]
        return {f"{one.method.upper()} {one.path}" for one in found}

    def fuzz(self, label: str, mode: GenerationMode) -> int:
        """How many requests were made; the first answer that is not as documented is raised."""
        method, path = label.split()
        asked = 0

        @FUZZ
        @given(self.schema[path][method].as_strategy(generation_mode=mode), st.data())
        def ask(case: Case, data: st.DataObject) -> None:
            nonlocal asked
            assume(is_sent(case))
            asked += 1
            if mode is GenerationMode.POSITIVE and data.draw(st.booleans(), "of what is there"):
                self._fill(case, data)
            case.validate_response(
                self.send(case), checks=CHECKS if mode is GenerationMode.POSITIVE else [*CHECKS, negative_data_rejection]
            )

        ask()
        return asked

    def _fill(self, case: Case, data: st.DataObject) -> None:
        """Put existing names in place of random text, and drop some of the optional fields, most of which exclude each other."""
        body = case.body if isinstance(case.body, dict) else {}
        source = body.get("source")
        for prefix, place in (
            ("", case.path_parameters),
            ("", case.query),
            ("", body),
            ("source.", source if isinstance(source, dict) else {}),
        ):
            for name in sorted(place or {}):
                if prefix + name in self.known:
                    place[name] = data.draw(st.sampled_from(self.known[prefix + name]), name)
                elif place in (body, source) and name != "source" and not data.draw(st.sampled_from([False, False, True]), f"keep {name}"):
                    del place[name]


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.chdir(tmp_path)
    office = Office(tmp_path)
    files = {"a.jsonl": b'{"text": "one"}\n', "torn.jsonl": b'{"text": \n', "binary.csv": bytes(range(256)), "a.csv": b"text,id\none,1\n"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    known: dict[str, list[Any]] = {
        "source.uri": [str(office.docs), *(str(tmp_path / name) for name in files), str(tmp_path)],
        "task": ["summarize", "classify", "extract", "translate", "ask"],
        "model": [MODEL, None],
        "column": ["text", None, "number"],
        "verb": ["cancel", "pause", "resume", "retry"],
        "name": ["jobs", "leases", "harvest", "lengths"],
        "query": [
            "select * from jobs",
            "from results('latest')",
            "from range(99)",
            "from 'x'",
            "select 1e400, 'é', '\\x00'::blob, {'a': [1]}",
        ],
        "deadline_at_s": [None, 1.0, 2e9],
        "source.table": [None],
        "source.query": [None],
        "new": [True],
        "max_tokens": [1, 600],
    }
    stage = Stage(office.http, "/openapi.json", known)
    known["job_id"] = ["latest", *(stage.loop.run(office.submitted(new=True)).id for _ in range(3))]
    yield stage
    office.ledger.check()
    office.ledger.close()
    stage.loop.close()


@pytest.fixture
def bureau(tmp_path: Path) -> Iterator[Stage]:
    bureau = Bureau(tmp_path, BatchConfig(max_file_bytes=4000), last_content)
    known: dict[str, list[Any]] = {"completion_window": ["24h"], "purpose": ["batch", "batch_output"]}
    stage = Stage(bureau.http, "/v1/files/openapi.json", known)

    async def prepare() -> None:
        works = [bureau.controller.run(), bureau.runner().run()]
        stage.working = [asyncio.create_task(work) for work in works]
        batches = [await bureau.ended(lines) for lines in ([line(0), line(1)], b"torn")]
        uploads = [await bureau.upload(jsonl([line(0)])) for _ in range(3)]
        known["batch_id"] = [batch.id for batch in batches]
        known["file_id"] = known["input_file_id"] = [*uploads, batches[0].output_file_id]
        known["after"] = known["batch_id"] + uploads

    stage.loop.run(prepare())
    yield stage
    bureau.ledger.check()
    stage.loop.close()
    bureau.ledger.close()


def is_sent(case: Case) -> bool:
    """Whether the request carries what was drawn: a form cannot express an empty list, and is valid without the field."""
    return not (case.media_type == "multipart/form-data" and isinstance(case.body, dict) and [] in case.body.values())


def asked(strict: Sequence[str], free: Sequence[str]) -> Any:
    """Each operation with requests as documented, and the strict ones with others too."""
    both = [(label, mode) for label in strict for mode in GenerationMode] + [(label, GenerationMode.POSITIVE) for label in free]
    return pytest.mark.parametrize(("label", "mode"), both, ids=[f"{label} {mode.value}" for label, mode in both])


@asked(JOBS, JOBS_FREE)
def test_whatever_the_jobs_application_is_asked_its_answer_is_documented(office: Stage, label: str, mode: GenerationMode) -> None:
    assert office.fuzz(label, mode) > 0


@asked(OPENAI, OPENAI_FREE)
def test_whatever_files_and_batches_are_asked_their_answer_is_documented(bureau: Stage, label: str, mode: GenerationMode) -> None:
    assert bureau.fuzz(label, mode) > 0


def test_every_operation_of_the_documents_is_asked(office: Stage, bureau: Stage) -> None:
    assert office.operations() == {*JOBS, *JOBS_FREE}
    assert bureau.operations() == {*OPENAI, *OPENAI_FREE}


@pytest.mark.parametrize("status", [500, 418], ids=["a server error", "a status that is not documented"])
def test_an_answer_that_is_not_as_documented_is_noticed(status: int) -> None:
    app = FastAPI()

    @app.get("/pot")
    def pot(cups: int) -> JSONResponse:
        return JSONResponse({}, status)

    stage = Stage(httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pot"), "/openapi.json", {})
    with pytest.raises(FailureGroup):
        stage.fuzz("GET /pot", GenerationMode.POSITIVE)
    stage.loop.close()
