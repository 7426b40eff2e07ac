"""Every route that is served, with the roles that may call it. A route that is in no table is not served.

A route of vLLM that is new or was not reviewed is answered as unknown, until a line here gives it to a role.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from starlette.routing import compile_path

from harvester.core import Role

Needed = frozenset[Role] | None

OPEN: Needed = None  # no key
SHUT: Needed = frozenset()  # nobody, the administrator included
ANY: Needed = frozenset(Role)
CHAT: Needed = frozenset({Role.CHAT})
BATCH: Needed = frozenset({Role.BATCH})
MODEL: Needed = frozenset({Role.CHAT, Role.BATCH})
METRICS: Needed = frozenset({Role.METRICS})
ADMIN: Needed = frozenset({Role.ADMIN})


@dataclass(frozen=True, slots=True)
class Route:
    """``is_model_request``: the body is checked as a request to the model. ``is_streamed``: the route reads the body in pieces.

    ``is_upload``: the body is a file to be stored, or a piece of one. The route reads it in pieces, and bounds it.
    ``is_reading``: a POST that asks for no work of the model or of jobs: it looks, or stops some. It counts as a GET does.
    """

    needed: Needed
    is_model_request: bool = False
    is_streamed: bool = False
    is_upload: bool = False
    is_reading: bool = False


class RouteTable:
    """Routes as ``"METHOD /path/{name}"``; of several that fit, the first is found.

    ``model_requests``, ``streamed``, ``uploads`` and ``readings``: see `Route`.
    """

    def __init__(
        self,
        routes: Mapping[str, Needed],
        model_requests: Collection[str] = (),
        streamed: Collection[str] = (),
        uploads: Collection[str] = (),
        readings: Collection[str] = (),
    ) -> None:
        self.routes = dict(routes)
        self._model_requests = frozenset(model_requests)
        self._streamed = frozenset((*streamed, *uploads))
        self._uploads = frozenset(uploads)
        self._readings = frozenset(readings)
        self._exact: dict[tuple[str, str], Route] = {}
        self._shaped: list[tuple[str, re.Pattern[str], Route]] = []
        for name, needed in routes.items():
            method, _, path = name.partition(" ")
            route = Route(needed, name in self._model_requests, name in self._streamed, name in self._uploads, name in self._readings)
            if "{" in path:
                self._shaped.append((method, compile_path(path)[0], route))
            else:
                self._exact[method, path] = route

    def find(self, method: str, path: str) -> Route | None:
        """The route, or None if it is not in the table. HEAD is found as GET."""
        method = "GET" if method == "HEAD" else method
        exact = self._exact.get((method, path))
        if exact is not None:
            return exact
        return next((route for wanted, shape, route in self._shaped if wanted == method and shape.match(path)), None)

    def has_path(self, path: str) -> bool:
        """Whether any method is served at ``path``: what a browser's preflight asks."""
        routes = [route for (_, known), route in self._exact.items() if known == path]
        routes += [route for _, shape, route in self._shaped if shape.match(path)]
        return any(route.needed != SHUT for route in routes)

    def with_routes(self, added: Mapping[str, Role]) -> RouteTable:
        """This table with the routes that a configuration gives to roles. What is sent to those is checked as a request to the model."""
        posts = {name for name in added if name.startswith("POST ")}
        routes = self.routes | {name: frozenset({role}) for name, role in added.items()}
        return RouteTable(routes, self._model_requests | posts, self._streamed, self._uploads, self._readings)


def _documents(prefix: str = "") -> dict[str, Needed]:
    return {f"GET {prefix}{path}": ANY for path in ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")}


# Requests to the model, of every kind of model. Their bodies are checked by `jobs.access.limits`.
_ASKED = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /v1/rerank",
    "POST /v2/rerank",
    "POST /v2/embed",
    "POST /pooling",
    "POST /classify",
    "POST /score",
    "POST /rerank",
    "POST /tokenize",
    "POST /detokenize",
)
# vLLM's other ways into the engine: their bodies have another form, to which no limit would apply.
_SHUT_WAYS = (
    "POST /invocations",
    "POST /inference/v1/generate",
    "POST /inference/v1/abort_requests",
    "POST /generative_scoring",
    "POST /v1/systemone",
    "POST /v1/chat/completions/batch",
    "POST /v1/chat/completions/render",
    "POST /v1/chat/completions/derender",
    "POST /v1/completions/render",
    "POST /v1/completions/derender",
    "POST /v1/messages/render",
    "POST /v1/responses/render",
    "POST /cohere/v2/chat",
    "POST /cohere/v2/chat/render",
    "GET /v1/responses/{response_id}",  # vLLM keeps no owner of an answer
    "POST /v1/responses/{response_id}/cancel",
    "WEBSOCKET /v1/realtime",
    "POST /ping",
)
# vLLM's control of the engine. It would act on one replica of several, behind the scheduler's back.
_SHUT_CONTROLS = (
    "POST /scale_elastic_ep",
    "POST /is_scaling_elastic_ep",
    "GET /kv_event_sources",
    "GET /fault_tolerance/status",
    "POST /fault_tolerance/apply",
    "POST /reset_prefix_cache",
    "POST /reset_mm_cache",
    "POST /reset_encoder_cache",
    "POST /collective_rpc",
    "GET /server_info",
    "POST /sleep",
    "POST /wake_up",
    "GET /is_sleeping",
    "POST /release_kv_cache_memory",
    "POST /pause",
    "POST /resume",
    "GET /is_paused",
    "POST /abort_requests",
    "POST /init_weight_transfer_engine",
    "POST /shutdown_weight_transfer_engine",
    "POST /start_weight_update",
    "POST /start_draft_weight_update",
    "POST /update_weights",
    "POST /finish_weight_update",
    "POST /update_weight_version",
    "GET /weight_info",
    "POST /weight_checker",
    "GET /get_world_size",
    "POST /adapters",
    "DELETE /adapters/{adapter_name}",
)

CHAT_ROUTES = RouteTable(
    {
        "GET /": OPEN,
        "GET /health": OPEN,
        "GET /ping": OPEN,
        "GET /v1/models": MODEL,
        "GET /v1/models/{name:path}": MODEL,
        "GET /version": ANY,
        "GET /tokenizer_info": MODEL,
        **_documents(),
        **dict.fromkeys(_ASKED, CHAT),
        "POST /tokenize": MODEL,
        "POST /detokenize": MODEL,
        "POST /v1/audio/transcriptions": CHAT,
        "POST /v1/audio/translations": CHAT,
        "GET /metrics": METRICS,
        "GET /load": METRICS,
        "POST /v1/load_lora_adapter": ADMIN,
        "POST /v1/unload_lora_adapter": ADMIN,
        "POST /start_profile": ADMIN,
        "POST /stop_profile": ADMIN,
        **dict.fromkeys((*_SHUT_WAYS, *_SHUT_CONTROLS), SHUT),
    },
    model_requests=_ASKED,
    streamed=("POST /v1/audio/transcriptions", "POST /v1/audio/translations"),
)
JOBS_ROUTES = RouteTable(
    {
        "GET /page/{name}": OPEN,
        "GET /asleep/{path:path}": OPEN,  # the page and health checks, where the model has no replica
        "POST /asleep/{path:path}": MODEL,
        **_documents(),
        "GET /server": ANY,
        "GET /tasks": BATCH,
        "GET /events": BATCH,
        "GET /history": BATCH,
        "POST /plan": BATCH,
        "GET /jobs": BATCH,
        "POST /jobs": BATCH,
        "GET /jobs/{job_id}": BATCH,
        "PATCH /jobs/{job_id}": BATCH,
        "DELETE /jobs/{job_id}": BATCH,
        "POST /jobs/{job_id}/cancel": BATCH,
        "POST /jobs/{job_id}/pause": BATCH,
        "POST /jobs/{job_id}/{verb}": BATCH,
        "GET /jobs/{job_id}/results": BATCH,
        "GET /uploads/{upload_id}/{name:path}": BATCH,
        "PUT /uploads/{upload_id}/{name:path}": BATCH,
        "DELETE /uploads/{upload_id}/{name:path}": BATCH,
        "GET /ledger/{name}": BATCH,
        "POST /sources/seen": BATCH,
        "GET /metrics": METRICS,
        "GET /harvested": BATCH,
        "POST /sql": BATCH,
        "POST /sql/answers": BATCH,
        "GET /sql/answers/{answer_id}": BATCH,
        "POST /profile": ADMIN,
        "POST /scale": ADMIN,
    },
    streamed=("POST /asleep/{path:path}",),
    uploads=("PUT /uploads/{upload_id}/{name:path}",),
    readings=(
        "POST /plan",
        "POST /jobs/{job_id}/cancel",
        "POST /jobs/{job_id}/pause",
        "POST /sources/seen",
        "POST /sql",
        "POST /sql/answers",
    ),
)
OPENAI_ROUTES = RouteTable(
    {
        "GET /v1/files/openapi.json": ANY,
        "POST /v1/files": BATCH,
        "GET /v1/files": BATCH,
        "GET /v1/files/{file_id}": BATCH,
        "DELETE /v1/files/{file_id}": BATCH,
        "GET /v1/files/{file_id}/content": BATCH,
        "GET /v1/batches/openapi.json": ANY,
        "POST /v1/batches": BATCH,
        "GET /v1/batches": BATCH,
        "GET /v1/batches/{batch_id}": BATCH,
        "POST /v1/batches/{batch_id}/cancel": BATCH,
    },
    uploads=("POST /v1/files",),
    readings=("POST /v1/batches/{batch_id}/cancel",),
)
