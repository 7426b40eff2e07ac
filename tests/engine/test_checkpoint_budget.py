"""Host memory for checkpoints is checked against what the machine has."""

from __future__ import annotations

import pytest

from harvester.config import parse_config
from harvester.errors import ConfigError

pytestmark = pytest.mark.engine
GIB = 1 << 30


def test_without_a_budget_the_replicas_share_a_quarter_of_what_is_free() -> None:
    from harvester.engine.checkpoints.budget import host_bytes

    assert host_bytes(None, 2, 16 * GIB) == 2 * GIB


def test_a_budget_that_the_machine_does_not_have_is_refused_with_one_that_it_has() -> None:
    from harvester.engine.checkpoints.budget import host_bytes

    assert host_bytes(4.0, 2, 16 * GIB) == 4 * GIB
    with pytest.raises(ConfigError, match=r"checkpoint.host_gib=8 for replicas=2 .* 16\.0 GiB .* at most 7\.2"):
        host_bytes(8.0, 2, 16 * GIB)


def test_a_connector_of_the_users_own_is_left_alone() -> None:
    from harvester.engine.launch.arguments import engine_arguments

    def given(**values: object) -> object:
        config = parse_config(values, "test")
        return engine_arguments(config, "m", "m", cpu=True, embedded=False).get("kv_transfer_config")

    own = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    assert given() is None
    assert given(checkpoint={"enabled": True}, engine={"kv_transfer_config": own}) == own
    found = given(checkpoint={"enabled": True, "host_gib": 0.01})
    assert isinstance(found, dict)
    assert found["kv_load_failure_policy"] == "recompute"
