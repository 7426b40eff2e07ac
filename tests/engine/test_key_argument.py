"""Keys as vLLM is given them."""

from __future__ import annotations

import pytest

from harvester.config import ServeConfig

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("given", ["plain", ["plain"]])
def test_vllm_is_given_a_list_of_keys_for_it_takes_a_string_letter_by_letter(given: object) -> None:
    from harvester.engine.launch.arguments import engine_arguments

    config = ServeConfig.model_validate({"engine": {"api_key": given}})
    assert engine_arguments(config, "/model", "tiny", cpu=True, embedded=True)["api_key"] == ["plain"]
