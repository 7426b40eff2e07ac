"""Why an engine did not start is said with the error of the process that failed, not of those that noticed."""

from __future__ import annotations

import logging
import warnings
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from pythonjsonlogger.json import JsonFormatter

from harvester.errors import EngineError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from ray.serve.schema import ApplicationStatus

    from harvester.serve import applications
    from harvester.serve.machine import nodes

WORKER = "(Worker pid=2) ERROR 11-30 06:00:01 [multiproc_executor.py:953] "
CORE = "(EngineCore pid=1) ERROR 11-30 06:00:02 [core.py:1510] "
NOTICED = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
DIED = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nodes, "session_logs", lambda: tmp_path)
    return tmp_path / "worker-1.out"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([WORKER + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", CORE + NOTICED], "CUDA out of memory"),
        ([WORKER + "torch.distributed.DistBackendError: NCCL error in init", CORE + NOTICED], "NCCL error"),
        ([CORE + "ValueError: No available memory for the cache blocks.", CORE + f"RuntimeError: {DIED}"], "No available memory"),
        ([CORE + "ValueError: the first", CORE + "ValueError: the second"], "the second"),
        ([CORE + NOTICED], None),
        ([CORE + "EngineCore failed to start."], None),
    ],
    ids=["out of memory", "of a module", "core", "last", "only noticed", "none"],
)
def test_the_error_of_the_process_that_failed_is_found(lines: list[str], said: str | None, log: Path) -> None:
    log.write_text("\r\n".join(lines), encoding="utf-8")
    found = nodes.last_error()
    assert (found is None) == (said is None)
    assert found is None or found[1].startswith(str(said))


def test_the_error_is_found_in_lines_for_machines_too(log: Path) -> None:
    lines, logger = StringIO(), logging.Logger("vllm.v1.engine.core")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    for message in ("the first", "No available memory for the cache blocks."):
        try:
            raise ValueError(message)
        except ValueError:
            logger.exception("EngineCore failed to start.")
    try:
        raise RuntimeError(DIED)
    except RuntimeError:
        logger.exception("WorkerProc failed.")
    try:
        raise ImportError("libcudart.so.12: cannot open shared object file")
    except ImportError:
        logger.warning("Module deep_gemm was found but failed to import.", exc_info=True)
    told = [f"(EngineCore pid=1) {line}" for line in lines.getvalue().splitlines()]
    assert len(told) == 4
    log.write_text("\n".join([*told, '{"exc_info": 1}', '{"exc_info"', '["exc_info"]']), encoding="utf-8")
    found = nodes.last_error()
    assert found is not None
    assert found[1] == "No available memory for the cache blocks."


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("CUDA out of memory", "Engine core initialization failed. Cause: CUDA out of memory"),
        (None, "Engine core initialization failed. See logs/ray in the state folder"),
    ],
    ids=["found", "not found"],
)
def test_without_a_cause_the_user_is_told_where_the_logs_are(cause: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applications, "root_cause", lambda: cause)
    app = SimpleNamespace(status=ApplicationStatus.DEPLOY_FAILED, deployments={}, message=f"harvester.errors.EngineStartError: {DIED}")
    with pytest.raises(EngineError) as raised:
        applications.raise_if_failed({"chat": app}, ())
    assert str(raised.value) == said
