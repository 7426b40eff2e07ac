"""Rows that show images to a real engine: a tiny model that sees answers them as the chat route does; a bad image ends its row alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.host_child import found_by

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

IMAGE_TOKENS = 8  # of `kinds.seeing`


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by("images_child", tmp_path_factory)


@pytest.mark.parametrize("which", ["rows", "together"])
def test_a_row_is_answered_as_a_chat_that_shows_the_same_image(found: dict[str, Any], which: str) -> None:
    for row, chat in zip(found[which], found["chats"], strict=True):
        assert row["status"] == "ok", row["error_message"]
        assert row["values"]["output"] == chat["choices"][0]["message"]["content"]
        assert row["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]


def test_the_model_sees_the_image(found: dict[str, Any]) -> None:
    assert len({row["values"]["output"] for row in found["rows"]}) > 1
    assert found["rows"][0]["usage"]["prompt_tokens"] == found["text"] + IMAGE_TOKENS


def test_a_replica_tells_how_many_images_a_prompt_may_have(found: dict[str, Any]) -> None:
    assert found["max_images"] == 1


@pytest.mark.parametrize("which", ["damaged", "refused by its host"])
def test_a_bad_image_ends_its_row(found: dict[str, Any], which: str) -> None:
    row = found[which]
    assert (row["status"], row["error_code"]) == ("error", "bad_image"), row
    assert "\n" not in row["error_message"]


def test_a_text_beside_an_image_is_cut_to_what_fits(found: dict[str, Any]) -> None:
    assert found["bound"] >= found["rows"][0]["usage"]["prompt_tokens"]
    assert (found["long"]["status"], found["long"]["truncated"]) == ("ok", True), found["long"]["error_message"]
