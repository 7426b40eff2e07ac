"""Rows that show images: the task, the columns, what is refused at submit, what such a row asks of the engine, and what is bad."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.open import open_source
from connectors.paths.rules import SourceRules
from connectors.text import NULL_TEXT
from harvester.errors import ColumnError, TaskError
from jobs.access.images import ImageBounds
from jobs.config import HarvestConfig
from jobs.engine import Prompt
from jobs.plan.columns import columns_needed
from jobs.plan.estimate import IMAGES_NOTE, Known, estimate
from jobs.plan.job import IMAGE_SLICE_ROWS, plan_job
from jobs.result import Row
from jobs.run.row import RowWork
from jobs.run.slice import open_parts, open_slice
from jobs.run.spool.spools import Spools
from jobs.spec import JobPlan, JobRequest, JobSpec, Lease, OnLong, SliceSpec, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.tasks.abilities import Abilities
from jobs.tasks.load import resolve_task
from jobs.testing import IMAGE_TOKENS, ManualClock, ScriptedEngine, scripted_plan

PNG = b"\x89PNG\r\n\x1a\n and the rest"
AS_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
CALM = "What is in this picture?"
CUT = SliceSpec(slice_id=0, group_index=0, offset=0, row_start=0, row_count=3)
HOSTS = ("pictures.example",)


def task(prompt: str = CALM, *images: str) -> Any:
    return resolve_task("ask", options={"prompt": prompt}, images=images or ("photo",))


def job(folder: Path, prompt: str = CALM, *images: str, **more: Any) -> JobSpec:
    """A job over a table in ``folder``, whose text is column ``text``."""
    about = {"source": SourceSpec(uri=str(folder / "table.parquet")), "task": task(prompt, *images), "column": None, **more}
    return scripted_plan("docs").spec.model_copy(update=about)


def answered(spec: JobSpec, cells: dict[str, object], text: str | None = None, **about: Any) -> tuple[Row, list[Prompt]]:
    asked: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt)
        return "a cat"

    engine = ScriptedEngine(answer=answer, **about)
    work = RowWork(spec, engine, ManualClock(), images=ImageBounds(1024, HOSTS))
    return asyncio.run(work.answer(3, cells, text, 1, "a")), asked


CELLS: dict[str, tuple[object, str]] = {
    "bytes": (PNG, AS_URL),
    "a file beside the table": ("cat.png", AS_URL),
    "a file in a folder": ("./more/cat.png", AS_URL),
    "a data: URL": (AS_URL, AS_URL),
    "a data: URL of another name": (AS_URL.replace("png", "x-odd"), AS_URL),
    "an address": ("https://pictures.example/cat.png", "https://pictures.example/cat.png"),
    "a struct of bytes": ({"bytes": PNG, "path": "gone.png"}, AS_URL),
    "a struct of a path": ({"bytes": None, "path": "cat.png"}, AS_URL),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    (place / "more").mkdir(parents=True)
    for name in ("cat.png", "more/cat.png"):
        (place / name).write_bytes(PNG)
    return place


@pytest.mark.parametrize("case", CELLS)
def test_an_image_is_shown_whatever_its_cell_holds(case: str, folder: Path) -> None:
    cell, address = CELLS[case]
    row, (prompt,) = answered(job(folder), {"photo": cell})
    assert (row.status, row.values) == ("ok", {"output": "a cat"})
    assert prompt.messages == ({"role": "user", "content": CALM},)
    assert prompt.rendering.images == (address,)


def test_an_absolute_path_is_read_where_the_rules_allow_it(folder: Path) -> None:
    rules = SourceRules(roots=(str(folder),))
    row, (prompt,) = answered(job(folder, rules=rules), {"photo": str(folder / "cat.png")})
    assert (row.status, prompt.rendering.images) == ("ok", (AS_URL,))


def test_several_columns_are_shown_in_the_order_of_the_task(folder: Path) -> None:
    second = "https://pictures.example/2.jpg"
    _, (prompt,) = answered(job(folder, CALM, "b", "a"), {"a": PNG, "b": second})
    assert prompt.rendering.images == (second, AS_URL)


BAD: dict[str, tuple[object, str]] = {
    "null": (None, "there is no image"),
    "no text": (NULL_TEXT, "the text is null"),
    "an empty path": (" ", "there is no image"),
    "another type": (7, "there is no image"),
    "an empty struct": ({"bytes": None, "path": None}, "there is no image"),
    "missing": ("gone.png", "No such file or directory"),
    "a folder": ("more", "no regular file"),
    "a pipe": ("pipe", "no regular file"),
    "no image": (b"<svg/>", "the 6 bytes are no PNG, JPEG, GIF, WebP, BMP or TIFF image"),
    "too large": (PNG + b"." * 1024, "the limit is 1,024 (harvest.max_image_bytes)"),
    "a file too large": ("large.png", "the limit is 1,024 (harvest.max_image_bytes)"),
    "a URL too large": ("data:image/png;base64," + "A" * 2048, "the limit is 1,024 (harvest.max_image_bytes)"),
    "a URL of other letters": ("data:image/png;base64,!!!!", "not in base64"),
    "a URL without base64": ("data:image/png,abc", "not in base64"),
    "another host": ("https://example.org/cat.png", "engine.allowed_media_domains"),
    "two hosts": ("https://pictures.example@example.org/cat.png", "engine.allowed_media_domains"),
    "another kind of address": ("s3://pictures.example/cat.png", "engine.allowed_media_domains"),
    "a file address": ("file:///etc/hostname", "engine.allowed_media_domains"),
    "a zero byte": ("cat\0.png", "null byte"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("is_user", [True, False], ids=["user", "client"])
def test_a_bad_image_is_the_error_of_its_row_alone(case: str, is_user: bool, folder: Path) -> None:
    (folder / "large.png").write_bytes(PNG + b"." * 1024)
    os.mkfifo(folder / "pipe")
    cell, said = BAD[case]
    rules = None if is_user else SourceRules(roots=(str(folder),))
    row, asked = answered(job(folder, rules=rules), {"photo": cell})
    assert (row.status, row.error_code, asked) == ("error", "bad_image", [])
    assert row.error_message is not None
    assert row.error_message.startswith("image column photo: ")
    assert said in row.error_message
    assert "\n" not in row.error_message


def test_a_text_beside_an_image_is_cut_to_what_the_image_leaves(folder: Path) -> None:
    prompt, text = "{text}", "Some words. " * 100
    spec = job(folder, prompt, "photo", column="text")
    spec = spec.model_copy(update={"task": spec.task.model_copy(update={"max_tokens": 10})})
    row, (asked,) = answered(spec, {"photo": PNG}, text, context_tokens=200)
    alone, (plain,) = answered(spec.model_copy(update={"task": spec.task.model_copy(update={"images": ()})}), {}, text, context_tokens=200)
    assert (row.status, row.truncated, alone.truncated) == ("ok", True, True)
    assert row.usage.prompt_tokens <= 190
    assert 0 < len(asked.messages[0]["content"]) <= len(plain.messages[0]["content"]) - 3 * IMAGE_TOKENS


def test_the_second_question_shows_the_image_again(folder: Path) -> None:
    schema = {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}
    asks = resolve_task("extract", options={"schema": schema}, images=("photo",))
    _, asked = answered(job(folder, column="text").model_copy(update={"task": asks}), {"photo": PNG}, "words")
    assert [prompt.rendering.images for prompt in asked] == [(AS_URL,), (AS_URL,)]


def test_a_path_that_is_no_text_is_the_error_of_its_row(folder: Path, tmp_path: Path) -> None:
    names = pa.array([b"cat.png", b"\xff.png", None]).cast(pa.binary())
    table = pa.table({"photo": pa.Array.from_buffers(pa.string(), 3, names.buffers())})
    pq.write_table(table, folder / "table.parquet")
    spec = job(folder)
    lease = Lease(lease_id="l", job=spec, slice=CUT, generation=0, attempt=1, expires_at_s=9.0)
    state = StateFolder(tmp_path / "state")
    state.jobs.mkdir(parents=True)
    with open_source(spec.source.uri) as source:
        files = open_slice(lease, source, open_parts(state, spec.id), Spools(state, 5.0))
    cells, texts = files.inputs()
    files.spool.close()
    found = [answered(spec, dict(one))[0] for one in cells]
    assert texts is None
    assert [row.error_code for row in found] == [None, "bad_image", "bad_image"]
    assert "not valid UTF-8" in str(found[1].error_message)


def plan(folder: Path, request: dict[str, Any], columns: dict[str, Any] | None = None, **able: Any) -> JobPlan:
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns or {"text": ["a", "b"], "photo": ["cat.png", "dog.png"], "count": [1, 2]}), path)
    asked = JobRequest(source=SourceSpec(uri=str(path)), **{"task": "ask", "options": {"prompt": CALM}, "images": ("photo",), **request})
    with open_source(str(path)) as source:
        return plan_job(asked, source, model="m", harvest=HarvestConfig(), now_s=0.0, token="0000", able=Abilities(**able))


def test_a_prompt_with_an_image_need_name_no_column(folder: Path) -> None:
    spec = plan(folder, {"keep": ()}, max_images=1).spec
    assert (spec.column, spec.task.images) == (None, ("photo",))
    assert columns_needed(spec) == ("photo",)
    with pytest.raises(TaskError, match="names no column"):
        plan(folder, {"images": ()})


def test_the_columns_of_a_request_stand_in_the_place_of_the_task_file_s() -> None:
    inline = {"prompt": CALM, "images": ["scan"]}
    assert resolve_task("mine", inline=inline).images == ("scan",)
    assert resolve_task("mine", inline=inline, images=["photo"]).images == ("photo",)


def test_images_make_another_job_and_none_leave_the_task_as_it_was(folder: Path) -> None:
    keys = {plan(folder, {"options": {"prompt": "{text}"}, "images": images}).spec.key for images in ((), ("photo",), ("text",))}
    assert len(keys) == 3
    assert "images" not in resolve_task("summarize").key_fields()


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no images": ({}, 0, "m takes no images, so task ask cannot show it column photo; serve a vision-language model, or leave --image out"),
    "too many": (
        {"images": ("photo", "text")},
        1,
        "m takes 1 images in one prompt, and task ask shows 2; name fewer columns with --image, "
        "or raise engine.limit_mm_per_prompt in the server's config",
    ),
    "split": ({"on_long": OnLong.SPLIT}, 1, "--on-long split asks for parts of a text, and an image has none; use truncate or error"),
    "embed": (
        {"task": "embed", "options": {}},
        1,
        "task embed has images and gives embeddings, which have no conversation; leave images out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_at_submit_in_one_line(case: str, folder: Path) -> None:
    request, max_images, said = REFUSED[case]
    with pytest.raises(TaskError) as refused:
        plan(folder, request, max_images=max_images)
    assert refused.value.message == said


def test_image_columns_are_checked_at_submit(folder: Path) -> None:
    with pytest.raises(ColumnError, match="--image names column photos, which the source does not have; did you mean photo"):
        plan(folder, {"images": ("photos",)})
    with pytest.raises(ColumnError, match="--image names column count of type int64; give one of bytes, paths or addresses"):
        plan(folder, {"images": ("count",)})
    with pytest.raises(ValueError, match="name each column once"):
        plan(folder, {"images": ("photo", "photo")})


def test_images_in_the_table_make_small_slices_and_are_kept_if_named(folder: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for photos in (pa.array([PNG] * 4096), pa.array([{"bytes": PNG, "path": None}] * 4096, kind)):
        columns: dict[str, Any] = {"name": ["x"] * 4096, "photo": photos}
        made = plan(folder, {}, columns)
        assert max(cut.row_count for cut in made.slices) == IMAGE_SLICE_ROWS
        assert made.spec.keep == ("name",)
        assert "Image column photo is not copied into the results; --keep copies it." in made.notes
        named = plan(folder, {"keep": ("photo",)}, columns)
        assert (named.spec.keep, [note for note in named.notes if "not copied" in note]) == (("photo",), [])


def test_a_dry_run_says_that_images_come_on_top(folder: Path) -> None:
    path = folder / "table.parquet"
    pq.write_table(pa.table({"photo": [PNG, PNG]}), path)
    request = JobRequest(source=SourceSpec(uri=str(path)), task="ask", options={"prompt": CALM}, images=("photo",))
    found = estimate(request, Known(able=Abilities(max_images=1)))
    assert (found["rows"], found["notes"][-1]) == (2, IMAGES_NOTE)
    assert found["estimated_prompt_tokens"] > 0
