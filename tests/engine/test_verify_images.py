"""A model that takes images is verified too, however many tokens an image has."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from harvester.config import parse_config
from harvester.engine.verify.subject import STEP_TOKENS, Subject
from tests.engine.kinds import seeing

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    from harvester.engine.vllm.launch import configure

pytestmark = pytest.mark.engine


def subject(folder: Path) -> Subject:
    """An image has more tokens than a step, and is not cut: as with Gemma 3 on CUDA, whose images have 256."""
    given = {"dtype": "float32", "block_size": 32, "disable_chunked_mm_input": True}
    return Subject(parse_config({"engine": given}, "test"), str(seeing(folder, 2 * STEP_TOKENS)), embedded=False, cpu=True)


def test_images_with_more_tokens_than_a_step_do_not_keep_the_engines_from_starting(tmp_path: Path) -> None:
    started = configure(subject(tmp_path).small())[1]
    assert not started.model_config.supports_multimodal_inputs or MultiModalBudget(started, MULTIMODAL_REGISTRY)
