"""The list of what harvester uses of vLLM is as the code is, and a vLLM that lacks some of it is found before an engine is made."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from harvester.engine.vllm import surface
from harvester.engine.vllm.surface import Surface
from harvester.errors import EngineError

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"


@pytest.fixture(scope="module")
def known() -> Surface:
    """The surface as it is written down, with everything in place."""
    read = Surface.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert list(surface.found_moved(read)) == []
    return read


def test_the_list_is_that_of_the_code() -> None:
    """In a process of its own: it looks at vLLM's worker for CPUs, which replaces parts of `torch.cuda`."""
    done = subprocess.run([sys.executable, "-m", "tools.surface", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"make it anew: .venv/bin/python -m tools.surface\n{done.stderr[-2000:]}"


def test_few_private_names_of_vllm_are_used(known: Surface) -> None:
    from tools.surface import private

    assert private(known) == [
        "Scheduler._free_request",
        "Scheduler._handle_blocked_waiting_request",
        "Scheduler._inflight_prefills",
        "Scheduler._mamba_block_aligned_split",
        "Scheduler._preempt_request",
    ]


def test_a_module_and_a_name_that_are_gone_are_found(known: Surface) -> None:
    changed = replace(known, imports={**known.imports, "vllm.v1.gone": ["A"], "vllm.v1.request": ["Request", "Gone"]})
    assert list(surface.found_moved(changed)) == ["vllm.v1.request.Gone is gone", "module vllm.v1.gone is gone"]


def test_a_method_that_is_gone_or_takes_something_else_is_found(known: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    def preempt(self: Scheduler, request: object, timestamp: float, *, drop: bool) -> None: ...

    monkeypatch.setattr(Scheduler, "_preempt_request", preempt)
    monkeypatch.delattr(Scheduler, "_free_request")
    found = list(surface.found_moved(known))
    assert found[:2] == [
        "Scheduler._free_request is gone",
        "Scheduler._preempt_request takes (self, request, timestamp, by name drop), not (self, request, timestamp, drop_stale_output=)",
    ]


def test_an_attribute_that_nothing_in_its_class_speaks_of_is_found(known: Surface) -> None:
    names = known.attributes[SCHEDULER]
    assert "_inflight_prefills" in names
    changed = replace(known, attributes={**known.attributes, SCHEDULER: [*names, "_prefills_under_way"]})
    assert list(surface.found_moved(changed)) == ["Scheduler._prefills_under_way is gone"]


def test_what_moved_is_told_in_one_line_with_the_version_to_install(known: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "installed_version", lambda: "0.99.0")
    lacking = replace(known, version="0.32.0", imports={"vllm.v1.request": ["A", "B", "C", "D"]}, overrides={}, attributes={})
    monkeypatch.setattr(Surface, "read", classmethod(lambda cls: lacking))
    with pytest.raises(EngineError) as refused:
        surface.require()
    assert refused.value.message == (
        "vLLM 0.99.0 is installed, harvester supports 0.32.x; vllm.v1.request.A is gone; vllm.v1.request.B is gone; "
        "vllm.v1.request.C is gone and 1 more: install vllm==0.32.0"
    )


def test_a_version_that_was_not_tested_and_lacks_nothing_is_used_with_a_warning(
    known: Surface, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(surface, "installed_version", lambda: "0.98.1")
    with caplog.at_level(logging.WARNING):
        surface.require()
        surface.require()
    assert caplog.messages == [f"vLLM 0.98.1 is installed, harvester is tested with {known.supported}; it has all that harvester uses"]
