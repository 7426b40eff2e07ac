"""Keys as vLLM is given them."""

from __future__ import annotations

import pytest

from harvester.config import ServeConfig

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("given", ["plain", ["plain"]])
def test_vllm_is_given_no_key_for_the_wall_before_it_asks(given: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    from harvester.engine.launch.arguments import engine_arguments
    from tests.doors.stock import stock_app

    monkeypatch.setenv("VLLM_API_KEY", "around")
    config = ServeConfig.model_validate({"engine": {"api_key": given}})
    values = engine_arguments(config, "/model", "tiny", cpu=True, embedded=True)
    app = stock_app(api_key=values["api_key"])
    assert AuthenticationMiddleware not in [one.cls for one in app.user_middleware]
