"""One line of a batch's input file: ``{"custom_id": ..., "method": "POST", "url": ..., "body": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from jobs.access.limits import Limits, check_json, check_size, check_transfer
from jobs.access.media import check_media
from jobs.batches.record import ENDPOINTS, BatchError
from jobs.errors import ParameterError, TooLargeError

LONGEST_ID = 512
NO_OWN = Limits()


@dataclass(frozen=True, slots=True)
class Request:
    line: int
    custom_id: str
    body: str  # JSON text of an object
    model: str


class BadLine(Exception):
    """This line makes the batch fail."""

    def __init__(self, error: BatchError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class LineRules:
    endpoint: str
    models: Collection[str]  # that the server has
    limits: Limits = NO_OWN
    media_hosts: Collection[str] = ()  # that images and the like are fetched from

    def read(self, number: int, raw: bytes, model: str | None) -> Request:
        """``model``: of the lines before; None for the first. Raises `BadLine`."""
        item = _object(number, raw)
        custom_id = _custom_id(number, item.get("custom_id"))
        method = item.get("method")
        if method != "POST":
            _bad(number, "invalid_method", f"The method of this request is {_short(method)}; it must be POST.", "method")
        self._check_url(number, item.get("url"))
        body = item.get("body")
        if not isinstance(body, dict):
            _bad(number, "missing_required_parameter", "This request has no body; give the endpoint's parameters as an object.", "body")
        own = self._model(number, body.get("model"), model)
        try:
            check_transfer(body)
            check_media(body, self.media_hosts)
            check_size(body, self.limits)
        except ParameterError as error:
            _bad(number, error.code, error.message, f"body.{error.param}")
        return Request(number, custom_id, _text(body), own)

    def _check_url(self, number: int, url: object) -> None:
        if url == self.endpoint:
            return
        if url in ENDPOINTS:
            message = f"The URL of this request is {url}, but the endpoint of the batch is {self.endpoint}; they must be the same."
            _bad(number, "mismatched_endpoint", message, "url")
        _bad(number, "invalid_url", f"The URL of this request is {_short(url)}; a batch takes {' and '.join(ENDPOINTS)}.", "url")

    def _model(self, number: int, own: object, first: str | None) -> str:
        if not isinstance(own, str) or not own:
            _bad(number, "missing_required_parameter", "The body of this request names no model.", "body.model")
        if first is not None and own != first:
            message = f"The model of this request is {_short(own)}, but the lines before name {_short(first)}; a batch has one model."
            _bad(number, "mismatched_model", message, "body.model")
        if own not in self.models:
            message = f"The model {_short(own)} does not exist here; this server has {', '.join(self.models)}."
            _bad(number, "model_not_found", message, "body.model")
        return own


def _object(number: int, raw: bytes) -> dict[str, Any]:
    try:
        check_json(raw)  # a replica reads it again
        item = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:120]
        _bad(number, "invalid_json_line", f"This line is not parseable as valid JSON: {reason}.", None)
    except TooLargeError as error:
        _bad(number, error.code, error.message, None)
    if not isinstance(item, dict):
        message = f"This line is a JSON {type(item).__name__}; it must be an object with custom_id, method, url and body."
        _bad(number, "invalid_json_line", message, None)
    return item


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _custom_id(number: int, given: object) -> str:
    if given is None or given == "":
        _bad(number, "missing_required_parameter", "This request has no custom_id; give each its own.", "custom_id")
    if not isinstance(given, str):
        _bad(number, "invalid_custom_id", f"The custom_id {_short(given)} is not a string.", "custom_id")
    if len(given) > LONGEST_ID:
        _bad(number, "invalid_custom_id", f"The custom_id has {len(given)} characters; the limit is {LONGEST_ID}.", "custom_id")
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:
        _bad(number, "invalid_custom_id", "The custom_id contains half a surrogate pair, which is not valid text.", "custom_id")
    return given


def _text(body: dict[str, Any]) -> str:
    """The body as JSON that UTF-8 can encode: a lone surrogate, which only an escape can spell, stays an escape."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":"))
    return text


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _bad(number: int, code: str, message: str, param: str | None) -> NoReturn:
    raise BadLine(BatchError(code=code, message=message, line=number, param=param))
