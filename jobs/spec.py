"""Frozen models of a job: the request, the resolved spec, its slices and leases, and the view that the API shows."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Literal, TypedDict

from pydantic import Field, model_validator

from connectors.files.form import TextForm
from connectors.paths.rules import SourceRules
from connectors.selection import Selection
from jobs.frozen import Frozen
from jobs.hint import SchedulingHint
from jobs.states import JobState
from jobs.tasks.spec import Adapter, ImageColumns, Task, TemplateKwargs, Thinking
from jobs.usage import NONE_USED, Usage


class OnLong(StrEnum):
    """What becomes of a text that does not fit the model's context."""

    TRUNCATE = "truncate"  # cut at the end of a sentence, and marked
    SPLIT = "split"  # asked for in parts, whose answers are combined
    ERROR = "error"


ERROR_RATE = 0.5
MAX_URI_CHARS = 4096
LAST_TIME_S = 253_402_300_799.0  # the year 9999: later times have no date


class Choices(TypedDict):
    """Keyword arguments of `connectors.open.open_source`."""

    table: str | None
    query: str | None
    selection: Selection
    form: TextForm


class SourceSpec(Frozen):
    """Names a source so that any process on the cluster can open it again (`connectors.open.open_source`)."""

    uri: str = Field(
        min_length=1,
        max_length=MAX_URI_CHARS,
        description="Absolute path of a file, glob or folder, or a URI (s3://...). Credentials in it are kept apart, as `${NAME}`.",
    )
    table: str | None = Field(
        default=None, max_length=MAX_URI_CHARS, description="Table of a database, sheet of a workbook, or split of a Hugging Face data set."
    )
    query: str | None = Field(
        default=None,
        max_length=100_000,
        description="SELECT over a database, instead of `table`; or over the table `source`, any other source.",
    )
    where: str | None = Field(default=None, max_length=100_000, description="SQL condition on columns: only rows that it is true for.")
    sample: int | None = Field(default=None, ge=1, description="Only so many rows, drawn at random by `seed`; after `where`.")
    seed: int = Field(default=0, ge=0, description="The same seed draws the same rows.")
    limit: int | None = Field(default=None, ge=1, description="Only the first so many rows; after `where` and `sample`.")
    encoding: str | None = Field(default=None, max_length=64, description="Encoding of text files. None: told by the file, else UTF-8.")
    ragged: bool = Field(default=False, description="Take rows of CSV that are shorter or longer than the header.")

    def choices(self) -> Choices:
        """Keyword arguments of `connectors.open.open_source`, which takes the address beside them."""
        return Choices(
            table=self.table,
            query=self.query,
            selection=Selection(self.where, self.sample, self.limit, self.seed),
            form=TextForm(self.encoding, self.ragged),
        )


class SeenFile(Frozen):
    """A file or folder as the client's machine knows it, to be told from another of the same path."""

    path: str = Field(min_length=1, max_length=MAX_URI_CHARS)
    bytes: int = Field(ge=0)
    modified_ns: int
    inode: int = Field(ge=0)


class JobRequest(Frozen):
    """What a user asks for: body of ``POST /api/jobs``."""

    source: SourceSpec
    task: str = Field(default="summarize", max_length=256, description="Name of a built-in task, or of `task_inline`; never a path.")
    task_inline: dict[str, Any] | None = Field(default=None, description="A task file's content; `task` is then its name.")
    options: dict[str, Any] = Field(default_factory=dict, description="Task options: labels, schema, to, prompt.")
    column: str | None = Field(default=None, description="Column that holds the text. Default: the only or best-named text column.")
    keep: tuple[str, ...] | None = Field(default=None, description="Input columns to copy into the results. None: all.")
    id_column: str | None = Field(default=None, description="Column that identifies rows; submit fails if its values are not unique.")
    model: str | None = Field(default=None, description="Model the job must run on. None: the server's.")
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    thinking: Thinking | None = Field(default=None, description="off, on, or its most tokens. None: the task's, or off if the model can.")
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict, description="More arguments of the model's chat template.")
    images: ImageColumns = Field(default=(), description="Columns of images: bytes, paths, addresses at allowed hosts. None: the task's.")
    adapter: Adapter | None = Field(default=None, description="LoRA adapter of the server to answer with. None: the task's, or none.")
    on_long: OnLong = OnLong.TRUNCATE
    max_error_rate: float = Field(
        default=ERROR_RATE,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Share of failed rows above which the job stops, after 100 rows.",
    )
    weight: float = Field(
        default=1.0,
        gt=0.0,
        le=1000.0,
        allow_inf_nan=False,
        description="Relative share: with 2 the job gets twice the tokens of a job with 1.",
    )
    deadline_at_s: float | None = Field(
        default=None, le=LAST_TIME_S, allow_inf_nan=False, description="Unix time at which the job expires."
    )
    new: bool = Field(default=False, description="Make a new job even if the same one exists.")

    def at(self, uri: str) -> JobRequest:
        """The request over the same table at another address."""
        return self.model_copy(update={"source": self.source.model_copy(update={"uri": uri})})

    @model_validator(mode="after")
    def _check(self) -> JobRequest:
        try:
            json.dumps(self.model_dump(), ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError("the request contains half a surrogate pair, which is not valid text") from error
        return self


class JobSpec(Frozen):
    """A job, resolved. ``key`` is equal for two requests that would compute the same."""

    id: str
    key: str
    source: SourceSpec
    fingerprint: str
    rules: SourceRules | None = Field(default=None, description="What may be read for who submitted it. None: all that the user may.")
    task: Task
    column: str | None
    keep: tuple[str, ...]
    model: str
    rows_total: int = Field(ge=1)
    created_at_s: float
    owner: str | None = Field(default=None, description="Name of the API key that made it. None: of a server without keys.")
    endpoint: str | None = Field(default=None, description="OpenAI endpoint that `column` holds requests to; None: prompts of `task`.")
    max_tokens: int | None = Field(default=None, description="Limit on each answer of an `endpoint`, of the key that made the job.")
    on_long: OnLong = OnLong.TRUNCATE
    max_error_rate: float = Field(default=1.0, ge=0.0, le=1.0, description="See `jobs.ledger.book`; 1 never stops the job.")
    weight: float = Field(default=1.0, gt=0.0)
    deadline_at_s: float | None = Field(default=None, description="Unix time at which the job expires. None: never.")

    def hint(self) -> SchedulingHint:
        """Hint of the job's requests as long as no boost or share was decided for its deadline."""
        return SchedulingHint(job=self.id, weight=self.weight)


class SliceSpec(Frozen):
    """Consecutive rows of one row group: the unit of leasing. Each slice has one part."""

    slice_id: int = Field(ge=0)
    group_index: int = Field(ge=0)
    offset: int = Field(ge=0, description="First row, counted within its row group.")
    row_start: int = Field(ge=0, description="row_id of the first row.")
    row_count: int = Field(ge=1)

    @property
    def row_ids(self) -> range:
        return range(self.row_start, self.row_start + self.row_count)


class JobPlan(Frozen):
    """A job before it is in the ledger: what `jobs.plan.job.plan_job` makes of a request."""

    spec: JobSpec
    slices: tuple[SliceSpec, ...]
    notes: tuple[str, ...] = Field(default=(), description="What was chosen for the user, one sentence each.")


class Lease(Frozen):
    """The right, until ``expires_at_s``, to compute one slice and publish its part."""

    lease_id: str
    job: JobSpec
    slice: SliceSpec
    generation: int = Field(ge=0, description="How often the job's failed rows were retried; names the part's edition.")
    attempt: int = Field(ge=1, description="How often this edition of the slice was leased.")
    expires_at_s: float


class RowCounts(Frozen):
    """Input rows that have a result, of a part or of a job."""

    rows_ok: int = 0
    rows_error: int = 0
    rows_truncated: int = Field(default=0, description="Rows with a result whose text was cut.")
    rows_recomputed: int = Field(default=0, description="Rows that were begun more than once.")
    rows_cut_off: int = Field(default=0, description="Rows whose answer ended at `max_tokens`: `finish_reason` length, status ok.")


COUNTS = (*RowCounts.model_fields, *Usage.model_fields)  # as columns of the ledger's tables, in the order of its statements


class PartStats(Usage, RowCounts):
    """What a published part holds; also kept in the part's own metadata."""

    generation: int = 0
    error_example: str | None = Field(default=None, description="How one of its rows failed: code and message.")
    lengths: tuple[tuple[int, int, int], ...] = Field(default=(), description="See `jobs.forecast.lengths.counted`; of new rows only.")
    device_s: float = Field(default=0.0, ge=0.0, description="GPU-seconds of the lease that made it; not in the part's metadata.")
    cost: float | None = Field(default=None, description="What that would have cost; None without a price by the hour.")
    token_prices: tuple[float, float] | None = Field(  # excluded: an earlier version would refuse a part whose metadata has it
        default=None, exclude=True, description="Prices of a million prompt and output tokens, where the hours have none."
    )
    currency: str | None = None
    replaced: Usage = Field(  # excluded likewise; a part's metadata has it under a key of its own
        default=NONE_USED, exclude=True, description="Of the failed rows that a retry computed again."
    )


class LeaseProgress(Frozen):
    """Progress on one lease since it was granted, as a heartbeat reports it."""

    lease_id: str
    rows_done: int = 0
    rows_error: int = Field(default=0, description="Rows that failed, of `rows_done`.")
    error: str | None = Field(default=None, description="Error of the row that failed last.")
    rows_found: int = Field(default=0, description="Rows that an earlier holder or a published part had, of `rows_done`.")
    tokens_done: int = Field(default=0, description="Prompt and output tokens of the other rows done.")
    rows_unbegun: int = Field(default=0, description="Rows that its holder could give back.")
    is_late: bool = Field(default=False, description="The source is slow: its holder wants no other slice of the job before it is read.")


class Spent(Frozen):
    """What an API key used. ``requests``: chat requests, or rows of jobs."""

    owner: str | None
    kind: Literal["chat", "batch"]
    requests: int
    prompt_tokens: int
    output_tokens: int


class JobChange(Frozen):
    """What may change of a job that exists; None leaves it."""

    weight: float | None = Field(default=None, gt=0.0, le=1000.0, allow_inf_nan=False)
    deadline_at_s: float | None = Field(default=None, le=LAST_TIME_S, allow_inf_nan=False)
    max_error_rate: float | None = Field(default=None, ge=0.0, le=1.0, allow_inf_nan=False)


class LengthBand(Frozen):
    """Response lengths of a task for prompts of such a length. Coverage: the share of rows within what was told before them."""

    prompt_tokens_from: int
    prompt_tokens_to: int
    rows: int
    p50_tokens: int
    p90_tokens: int
    p50_coverage: float | None
    p90_coverage: float | None


class JobHead(Frozen):
    """The fields of a `JobView` that come first."""

    id: str
    state: JobState
    task: str
    source: str
    model: str
    rows_total: int


class JobView(Usage, RowCounts, JobHead):
    """How a job stands: one object of ``harvester show --json`` and ``GET /api/jobs/JOB``."""

    rows_running: int = Field(description="Rows done in slices that are not published yet.")
    rows_to_retry: int = Field(default=0, description="Of `rows_error`, rows that a retry asks again: they are not done.")
    offline_tokens_per_s: float | None = Field(description="Prompt and output tokens over the last minute of work; None before any.")
    eta_s: float | None
    eta_low_s: float | None = Field(default=None, description="Four of five jobs end between this and `eta_high_s`.")
    eta_high_s: float | None = None
    owner: str | None = Field(default=None, description="Name of the API key that made it.")
    weight: float = 1.0
    deadline_at_s: float | None = None
    boost: float = Field(default=1.0, description="Factor on the job's weight because of its deadline.")
    guaranteed_share: float = Field(default=0.0, description="Share of the engine guaranteed to the job because of its deadline.")
    standing: str | None = Field(default=None, description="A sentence on the deadline, if the job is late or raised.")
    response_lengths: tuple[LengthBand, ...] = ()
    created_at_s: float
    started_at_s: float | None
    ended_at_s: float | None
    message: str | None = Field(description="Why the job is in this state: a cause of failure, a wait for disk space.")
    results: str = Field(description="Folder of the parts.")
    notes: tuple[str, ...] = ()
