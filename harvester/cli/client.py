"""HTTP client of the jobs application, for the commands."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx
from pydantic import Field, ValidationError

from harvester.api.flow import TRIES, wait_of
from harvester.api.wire import SUBMIT_S, retry_after_s
from harvester.cli.slow import said_if_slow
from harvester.client_environment import default_api_key, is_here, is_key
from harvester.errors import HarvesterError, KeyRefusedError, NoReplicaError, NotFoundError, UnreachableError, UsageError, from_json
from jobs.access.handle import HEADER, read_key, signed
from jobs.config import PriceConfig
from jobs.spec import JobChange, JobRequest, JobView
from jobs.states import ENDED
from jobs.storage.folder import StateFolder
from jobs.tasks.abilities import Abilities

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_S = 3.0
READ_S = 30.0
PROFILE_S = 60.0  # on top of twice the time asked for: chat has priority
_SEEN = "/api/sources/seen"


class ServerInfo(Abilities):
    """Answer of ``GET /api/server``."""

    version: str
    model: str
    model_note: str | None = None
    state: str
    url: str
    pid: int | None = None
    replicas: int = 1
    models: dict[str, Abilities | None] = Field(default_factory=dict)  # further models
    price: PriceConfig | None = None
    started_at_s: float | None = None


class Client:
    """Talks to one server, with the key in ``HARVESTER_API_KEY`` if there is one.

    Raises what the server raised, and `UnreachableError` where none answers.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._state: str | None = None  # state folder of the server that answered
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is not a URL; use one like http://127.0.0.1:8000")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=_authorization(),
                timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
                transport=transport,
                trust_env=not is_here(self.url),  # proxies from the environment do not apply to this machine
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(f"{url!r} is not a URL: {error}; use one like http://127.0.0.1:8000") from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def server(self) -> ServerInfo:
        """The server that answers. Raises `UnreachableError` for anything but a ready harvester server."""
        try:
            info = ServerInfo.model_validate(self._json("GET", "/api/server"))
            self._state = info.state
            return info
        except (UnreachableError, KeyRefusedError):
            raise
        except (HarvesterError, ValidationError) as error:
            cause = error.message if isinstance(error, HarvesterError) else "its answer has another shape"
            raise UnreachableError(
                f"the answer from {self.url} is not from a ready harvester server ({cause}); run: harvester doctor"
            ) from error

    def submit(self, request: JobRequest) -> tuple[JobView, bool]:
        """The job, and whether it is new (False: the same job existed)."""
        content = json.dumps(request.model_dump(mode="json")).encode("ascii")
        headers = {"content-type": "application/json", **self._signature("/api/jobs", content)}
        timeout = httpx.Timeout(SUBMIT_S, connect=CONNECT_S)
        body = self._json("POST", "/api/jobs", content=content, headers=headers, timeout=timeout)
        return self._view(body["job"]), bool(body["created"])

    def is_user(self) -> bool | None:
        """Whether the server runs on this machine as the user who asks; None: a server of an earlier version, which does not say."""
        told = self._seen([])
        return None if told is None else told["is_user"]

    def sees(self, path: Path) -> bool:
        """Whether the server reads this same file or folder at ``path``; on another machine the path may be another file."""
        about = path.stat()
        asked = {"path": str(path), "bytes": about.st_size, "modified_ns": about.st_mtime_ns, "inode": about.st_ino}
        told = self._seen([asked])
        return told is None or told["is_seen"]

    def _seen(self, files: list[dict[str, Any]]) -> dict[str, bool] | None:
        content = json.dumps({"files": files}).encode("ascii")
        headers = {"content-type": "application/json", **self._signature(_SEEN, content)}
        try:
            return dict(self._json("POST", _SEEN, content=content, headers=headers))
        except NotFoundError:
            return None

    def active(self) -> list[JobView]:
        """The jobs that have not ended, newest first."""
        found = self._json("GET", "/api/jobs", params={"active": True})
        views = [self._view(job) for job in found["jobs"]]
        return [view for view in views if view.state not in ENDED]  # a server of before sends all

    def newest(self, limit: int | None) -> tuple[list[JobView], int]:
        """The newest ``limit`` jobs, newest first, and how many older ones there are. None: all."""
        found = self._json("GET", "/api/jobs", params={} if limit is None else {"limit": limit})
        views = [self._view(job) for job in found["jobs"]]
        return views[:limit], found.get("older", 0) + max(0, len(views) - (limit or len(views)))  # a server of before sends all

    def job(self, job_id: str) -> JobView:
        return self._view(self._json("GET", f"/api/jobs/{_segment(job_id)}"))

    def change(self, job_id: str, verb: str) -> JobView:
        """``verb``: cancel, pause, resume or retry."""
        return self._view(self._json("POST", f"/api/jobs/{_segment(job_id)}/{verb}"))

    def remove(self, job_id: str) -> JobView:
        """Remove an ended job with its results; returns its last view."""
        return self._view(self._json("DELETE", f"/api/jobs/{_segment(job_id)}"))

    def adjust(self, job_id: str, change: JobChange) -> JobView:
        return self._view(self._json("PATCH", f"/api/jobs/{_segment(job_id)}", json=change.model_dump(exclude_none=True)))

    def count_tokens(self, model: str, messages: Sequence[dict[str, str]]) -> int:
        """Tokens of the rendered chat prompt, by the server's tokenizer."""
        return int(self._json("POST", "/tokenize", json={"model": model, "messages": list(messages)})["count"])

    def scale(self, replicas: int, model: str | None) -> dict[str, Any]:
        """Set the number of replicas of a model (None: the first). ``was`` in the answer: the number set before."""
        return dict(self._json("POST", "/api/scale", json={"replicas": replicas, "model": model}))

    def profile(self, seconds: float) -> dict[str, Any]:
        """Measure the engine for about ``seconds``; what `harvester.engine.launch.profiler.profile` returns."""
        wait_s = httpx.Timeout(2 * seconds + PROFILE_S, connect=CONNECT_S)
        return dict(self._json("POST", "/api/profile", json={"seconds": seconds}, timeout=wait_s))

    def ledger(self, table: str) -> pa.Table:
        """All rows of a table of `jobs.ledger.store.statements.TABLES`."""
        with self._reached():
            answer = self._send("GET", f"/api/ledger/{table}")
        _check(answer)
        import pyarrow as pa  # which most commands do without

        return pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()

    @contextmanager
    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
        """The lines of a streamed answer to a POST, as they come."""
        with self._reached(), self._http.stream("POST", path, json=body, timeout=httpx.Timeout(None, connect=CONNECT_S)) as answer:
            if answer.status_code >= 400:
                answer.read()
            _check(answer)
            yield _lines(answer.iter_bytes())

    def _json(self, method: str, path: str, **options: Any) -> Any:
        with self._reached():
            answer = self._send(method, path, **options)
        _check(answer)
        return _body(answer)

    def _signature(self, path: str, content: bytes) -> dict[str, str]:
        """Header that proves to a server on this machine that its own user asks, if so: see `jobs.access.handle`."""
        if self._state is None:
            self.server()
        key = read_key(StateFolder(Path(self._state or "")))
        return {} if key is None else {HEADER: signed(key, "POST", path, content, time.time())}

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request. One above a limit for now (429) did nothing; it is sent again, as by `harvester.api.flow.ask`."""
        for attempt in range(1, TRIES):
            answer = self._sent(method, path, **options)
            wait_s = wait_of(answer.status_code, retry_after_s(answer), attempt)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS or wait_s is None:
                return answer
            with said_if_slow("Waiting for the rate limit"):
                time.sleep(wait_s)
        return self._sent(method, path, **options)

    def _sent(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A GET is retried once, because the ingress closes idle connections when replicas change."""
        try:
            return self._http.request(method, path, **options)
        except httpx.RemoteProtocolError:
            if method != "GET":
                raise
            return self._http.request(method, path, **options)

    def _view(self, body: Any) -> JobView:
        try:
            return JobView.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise HarvesterError(
                f"the server at {self.url} runs another version of harvester ({first['loc'][-1]}: {first['msg']}); "
                "install the same version on both sides"
            ) from error

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise UnreachableError(f"no server answers at {self.url}; start one with: harvester serve") from error
        except httpx.TimeoutException as error:
            raise UnreachableError(f"the server at {self.url} did not answer in time; it may be busy: try again") from error
        except httpx.TransportError as error:
            raise UnreachableError(
                f"lost the connection to {self.url}: {error or type(error).__name__}; check that the server runs"
            ) from error
        except httpx.DecodingError as error:
            raise UnreachableError(f"the answer from {self.url} came damaged ({error}); check the proxies in between") from error


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Lines split at line feeds only: httpx also splits at U+2028, which an answer may contain."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()
    if rest:
        yield rest.decode()


def _authorization() -> dict[str, str]:
    key = default_api_key()
    if key is not None and not is_key(key):
        raise UsageError("HARVESTER_API_KEY contains characters that no API key has; set it to one of the server's API keys")
    return {} if key is None else {"authorization": f"Bearer {key}"}


def _segment(job_id: str) -> str:
    """A job id, checked for use in a path: a slash or question mark in it would name another route."""
    if not job_id or not all(letter.isalnum() or letter in "-_." for letter in job_id):
        raise UsageError(f"{job_id!r} is not a job id; list them with: harvester jobs")
    return job_id


def _body(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise HarvesterError(f"the server at {answer.url} sent an answer that is not JSON: {answer.text[:200]!r}") from error


def _check(answer: httpx.Response) -> None:
    if answer.status_code < 400:
        return
    try:
        body = answer.json()
    except ValueError:
        body = answer.text
    error, after_s = from_json(body, answer.status_code), retry_after_s(answer)
    if isinstance(error, NoReplicaError) and after_s is not None:
        error.retry_after_s = after_s
    raise error
