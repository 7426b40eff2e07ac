"""Stock vLLM, beside which harvester is measured: its command line is made of harvester's own arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.arguments import engine_arguments

pytestmark = pytest.mark.engine


def test_vllms_own_server_takes_the_arguments_without_what_is_harvesters_own(tmp_path: Path) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from bench.harness.servers.raw_server import RawServer

    arguments = engine_arguments(ServeConfig(), "/models/one", "one", cpu=True, embedded=False)
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(RawServer(arguments, tmp_path / "log")._words())
    validate_api_server_args(parsed)
    assert (parsed.model, parsed.served_model_name, parsed.scheduling_policy) == ("/models/one", ["one"], "fcfs")
    assert not parsed.api_key
