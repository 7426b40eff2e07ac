"""How files and batches word errors: as OpenAI does, with the parameter that is at fault."""

from __future__ import annotations

from typing import Any

from harvester.serve.refusals import PlainJson, Wording, error_answer

_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


def _invalid(first: dict[str, Any]) -> PlainJson:
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    message = f"{where or 'request'}: {first['msg']}"
    return error_answer(400, " ".join(message.split())[:500], where or None, _CODES.get(first["type"], "invalid_value"))


WORDING = Wording(
    unknown_route="Invalid URL ({method} {path:.80})",
    bug="internal error; the server's log has the cause",
    code_of=lambda kind: None,
    invalid=_invalid,
)
