"""``python -m tests.engine.traces_child``: a chat and a row of an engine whose spans go to ``--collector``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from bench.harness.device import on_cpu

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


async def run(collector: str) -> None:
    import httpx

    from harvester.config import parse_config
    from harvester.engine.embedded import EMBEDDED_NAME, embedded_model
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import SharedState
    from harvester.traces import flush, tracer_of
    from jobs.run.row import RowWork
    from jobs.testing import scripted_plan

    config = parse_config({"traces": {"endpoint": collector}, "engine": {"max_model_len": 512}}, "test")
    tracer_of(config.traces, "replica")  # sets what vLLM's processes read
    shared = SharedState.make()
    values = engine_arguments(config, str(embedded_model()), EMBEDDED_NAME, cpu=on_cpu(), embedded=True, shared=shared.path)
    host = await EngineHost.start(values)
    try:
        row = await RowWork(scripted_plan("docs").spec, host.offline(EMBEDDED_NAME, 4), time.time).answer(0, {"text": "a"}, "a", 1, "one")
        assert row.status == "ok", row.error_message
        body = {"model": EMBEDDED_NAME, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1") as http:
            assert (await http.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT})).status_code == 200
    finally:
        host.close()
        flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collector", required=True)
    asyncio.run(run(parser.parse_args().collector))
    return 0


if __name__ == "__main__":
    sys.exit(main())
