"""Rows on LoRA adapters of a real engine: several at once, each answered as the chat route answers for that adapter."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.adapters_child import NAMES, TEXTS
from tests.engine.host_child import found_by

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by("adapters_child", tmp_path_factory)


def test_each_adapter_answers_in_its_own_way(found: dict[str, Any]) -> None:
    rows = found["rows"]
    for at in range(len(TEXTS)):
        assert len(set(rows[at * len(NAMES) : (at + 1) * len(NAMES)])) == len(NAMES), rows


@pytest.mark.parametrize("which", ["together", "chats"])
def test_rows_beside_others_and_chats_are_answered_as_rows_alone(found: dict[str, Any], which: str) -> None:
    assert found[which] == found["rows"]


def test_a_replica_tells_its_adapters_and_the_chat_route_has_them(found: dict[str, Any]) -> None:
    assert found["adapters"] == ["first", "second"]
    assert found["models"][1:] == ["first", "second"]


def test_a_row_on_an_adapter_that_this_engine_lacks_ends_as_an_error(found: dict[str, Any]) -> None:
    assert found["unknown"].startswith("this replica has no adapter third; name it under adapters in the server's config")
