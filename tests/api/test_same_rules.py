"""Rules that the light client has of its own, because it imports neither server nor connectors: they are the same there."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.open import is_attached
from harvester.api import uploads
from harvester.api.client import Calls
from harvester.serve.http.jobs import uploads_api


def test_a_client_takes_the_uploads_that_a_server_takes() -> None:
    theirs = uploads_api.MAX_DEPTH, uploads_api.MAX_NAME_BYTES
    assert theirs == (uploads.MAX_DEPTH, uploads.MAX_NAME_BYTES)


@pytest.mark.parametrize("kind", ["postgres", "postgresql", "mysql", "md", "odbc", "duckdb", "sqlite"])
def test_a_client_passes_on_the_addresses_of_databases_that_a_server_opens(kind: str) -> None:
    address = f"{kind}:dbname=shop"
    assert is_attached(address)
    with pytest.raises(StopIteration) as passed:
        next(Calls[Any](None, lambda view, model: None).upload(address))  # type: ignore[arg-type]  # nothing is sent
    assert passed.value.value == address
