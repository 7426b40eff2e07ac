"""Predicts answer lengths of a job: the median of its own finished rows, by prompt length."""

from __future__ import annotations

from harvester.policy.model.recent import Recent

MIN_ROWS = 20  # minimum for a median
MAX_ROWS = 400  # newest rows that a median is taken over
MAX_JOBS = 64  # jobs kept: those whose rows ended last
TOLD_ANEW = 0.05  # relative change at which a new median is published, so that values derived from it stay valid for longer


class AnswerLengths:
    """Medians of answer tokens. Rows of one job share a template, so finished rows predict the length of the others.

    Rows are grouped into bands of prompt tokens whose bounds double. A band with fewer than `MIN_ROWS` rows uses all rows of the job.
    ``version`` rises whenever a published median changes.
    """

    def __init__(self) -> None:
        self.version = 0
        self._jobs: dict[str, dict[int | None, _Told]] = {}

    def learn(self, job: str, prompt_tokens: int, answer_tokens: int) -> None:
        """A row has ended by itself; O(log `MAX_ROWS`)."""
        bands = self._jobs.pop(job, None)
        self._jobs[job] = bands = {None: _Told()} if bands is None else bands
        if len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        for band in (None, prompt_tokens.bit_length()):
            self.version += bands.setdefault(band, _Told()).add(answer_tokens)

    def median(self, job: str, prompt_tokens: int) -> int | None:
        """Median answer tokens of the job's rows with prompts of such a length; None while too few have ended."""
        bands = self._jobs.get(job)
        if bands is None:
            return None
        band = bands.get(prompt_tokens.bit_length())
        return bands[None].told if band is None or band.told is None else band.told


class _Told:
    """The newest lengths. ``told``: their median as last published; None until there were `MIN_ROWS`."""

    def __init__(self) -> None:
        self.told: int | None = None
        self._newest = Recent(MAX_ROWS)

    def add(self, tokens: int) -> bool:
        """Returns whether a new median is published."""
        self._newest.add(tokens)
        if len(self._newest) < MIN_ROWS:
            return False
        median = round(self._newest.median())
        if self.told is not None and abs(median - self.told) <= TOLD_ANEW * self.told:
            return False
        self.told = median
        return True
