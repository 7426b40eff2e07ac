"""Turns a request into a plan: opens its source under the sender's access rules, keeps credentials apart, copies rows where needed."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from connectors.credentials import fill_in
from connectors.errors import SourceError, StorageError
from connectors.open import open_source
from connectors.paths.rules import SourceRules
from jobs.access.limits import Limits, check_job
from jobs.access.secrets import kept_apart, looked_up, write_secrets
from jobs.config import HarvestConfig, SecretConfig, SourcesConfig
from jobs.errors import TaskError
from jobs.plan.estimate import Known, estimate
from jobs.plan.job import check_deadline, plan_job
from jobs.spec import JobPlan, JobRequest, SeenFile
from jobs.storage.folder import SECRETS, StateFolder
from jobs.storage.inputs import forget_input, send_input
from jobs.tasks.abilities import Abilities, check_served
from jobs.tasks.spec import Task


class JobPlanner:
    """Turns requests into plans. Call it from a thread, because it reads files of the source."""

    def __init__(
        self,
        folder: StateFolder,
        harvest: HarvestConfig,
        model: str,
        sources: SourcesConfig | None = None,
        named_secrets: Mapping[str, SecretConfig] | None = None,
        further: Collection[str] = (),
        deadline_notes: Mapping[str, str] | None = None,
    ) -> None:
        """``further``: names of models beside ``model`` that a job may run on. ``deadline_notes``: by model, for jobs with a deadline."""
        self.folder = folder
        self._harvest = harvest
        self._model = model
        self._models = (model, *further)
        self._deadline_notes = dict(deadline_notes or {})
        about = sources or SourcesConfig()
        self._rules = SourceRules(about.roots or (), about.hosts, tuple(map(str, folder.own_folders())))
        self._named_secrets = dict(named_secrets or {})

    @property
    def min_free_bytes(self) -> int:
        """Bytes that must stay free on the state folder's disk."""
        return self._harvest.min_free_bytes

    def plan(
        self,
        request: JobRequest,
        able: Abilities,
        owner: str | None = None,
        limits: Limits | None = None,
        *,
        is_user: bool = False,
        uploaded: SourceRules | None = None,
    ) -> JobPlan:
        """Plan a job. Raises a `UsageError` that tells the user what to change. ``able``: abilities of the model.

        ``owner``: who asks, within ``limits``. ``is_user``: the server's own user asks, who may read all that the server may; others may
        read what the configuration's ``sources`` allow, or ``uploaded`` for an uploaded file.
        """
        check_deadline(request.deadline_at_s, time.time())  # before a source is copied
        self.folder.check_free(self._harvest.min_free_bytes)
        rules = uploaded or (None if is_user else self._rules)
        request, address, kept = self._addressed(request)
        staging = self.folder.jobs / f".staging-{secrets.token_hex(6)}"
        try:
            if kept:
                write_secrets(staging, kept)
            plan = self._planned(request, address, staging, limits, rules=rules, owner=owner, able=able)
            check_job(plan.spec.task.most_tokens, plan.spec.task.json_schema or plan.spec.task.labels, plan.spec.rows_total, limits)
            _check_room(plan.spec.task, plan.spec.model, able.context_tokens)
            if staging.exists():  # what the job reads from now on: a copy of its rows, credentials of its source
                staging.rename(self.folder.jobs / plan.spec.id)
            self._send(plan)
            return plan
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _addressed(self, request: JobRequest) -> tuple[JobRequest, str, dict[str, str | SecretConfig]]:
        """The request without credentials, the address of its source with them, and each by name.

        Raises `UsageError`, also for a model that is not served.
        """
        check_served(request.model or self._model, self._models)
        uri, kept = kept_apart(request.source.uri, self._named_secrets)
        return request.at(uri), fill_in(uri, {name: looked_up(name, one) for name, one in kept.items()}), kept

    def _send(self, plan: JobPlan) -> None:
        try:
            send_input(self.folder, plan.spec.id, plan.spec.source.uri)
        except StorageError:
            self.forget(plan)
            raise

    def _planned(
        self, request: JobRequest, uri: str, staging: Path, limits: Limits | None, *, rules: SourceRules | None, **about: Any
    ) -> JobPlan:
        """``about``: more of `plan_job`."""
        spec = request.source
        most = None if limits is None else limits.max_copied_bytes
        with open_source(uri, **spec.choices(), snapshot_dir=staging / "input", rules=rules, max_copied_bytes=most) as source:
            plan = plan_job(
                request,
                source,
                model=request.model or self._model,
                harvest=self._harvest,
                now_s=time.time(),
                token=self._token(source.name),
                rules=rules,
                **about,
            )
        return plan.model_copy(update={"notes": (*plan.notes, *self._noted(request))})

    def _noted(self, request: JobRequest) -> list[str]:
        note = self._deadline_notes.get(request.model or self._model)
        return [] if request.deadline_at_s is None or note is None else [note]

    def estimate(
        self, request: JobRequest, known: Known, limits: Limits | None = None, uploaded: SourceRules | None = None
    ) -> dict[str, Any]:
        """Estimate what the job of a client's request would take. Keeps nothing. Raises what `plan` raises."""
        request, address, _ = self._addressed(request)
        found = estimate(request.at(address), known, uploaded or self._rules, None if limits is None else limits.max_copied_bytes)
        return {**found, "notes": [*found["notes"], *self._noted(request)]}

    def _token(self, name: str) -> str:
        """Four hex digits for a job id that no folder has yet."""
        while True:
            token = secrets.token_hex(2)
            job = self.folder.jobs / f"{name}-{token}"
            if not job.exists() and (self.folder.mirror is None or not self.folder.mirror.has(job)):
                return token

    def sees(self, files: Sequence[SeenFile], *, is_user: bool) -> bool:
        """Whether each path leads here to the same file as on the client's machine, and may be read for the client.

        False for a file that may not be read, whether it exists or not.
        """
        try:
            for file in files:
                if not is_user:
                    self._rules.check_path(file.path)
                found = Path(file.path).stat()
                if (found.st_size, found.st_mtime_ns, found.st_ino) != (file.bytes, file.modified_ns, file.inode):
                    return False
        except (OSError, ValueError, SourceError):
            return False
        return True

    def forget(self, plan: JobPlan) -> None:
        """Remove what `plan` kept for a job that was then not made. Never removes results."""
        shutil.rmtree(self.folder.snapshot(plan.spec.id), ignore_errors=True)
        with suppress(OSError):
            (self.folder.jobs / plan.spec.id / SECRETS).unlink()
        with suppress(OSError):  # not there, or not empty
            (self.folder.jobs / plan.spec.id).rmdir()
        with suppress(StorageError):  # what stays in the storage is a copy that nobody reads
            forget_input(self.folder, plan.spec.id)


def _check_room(task: Task, model: str, context_tokens: int | None) -> None:
    if context_tokens is None or task.most_tokens < context_tokens:
        return
    thought = f" and thinking {task.thinking_tokens}" if task.thinking_tokens else ""
    lower = "--thinking or --max-tokens" if thought else "--max-tokens"
    raise TaskError(
        f"max_tokens {task.max_tokens}{thought} leaves no room for a prompt in the {context_tokens} tokens that {model} takes; "
        f"lower it with {lower}"
    )
