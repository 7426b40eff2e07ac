"""How long the answers of a job are: the median of its own finished rows, by how long their prompts were."""

from __future__ import annotations

from harvester.policy.model.recent import Recent

MIN_ROWS = 20  # fewer say nothing
MAX_ROWS = 400  # the newest that a median is taken of
MAX_JOBS = 64  # the last ones that rows ended of are remembered
TOLD_ANEW = 0.05  # a median that has moved by so much is told anew: what was derived from it holds longer


class AnswerLengths:
    """Medians of answer tokens. Rows of one job share a template, so that those done say how long the others will be.

    Rows are counted in bands of prompt tokens that double. A band with fewer than `MIN_ROWS` rows is spoken for by all rows of the job.
    ``version`` rises whenever a median that may have been told is another one.
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
        """Answer tokens that half of the job's rows with such a prompt do not exceed; None while too few have ended."""
        bands = self._jobs.get(job)
        if bands is None:
            return None
        band = bands.get(prompt_tokens.bit_length())
        return bands[None].told if band is None or band.told is None else band.told


class _Told:
    """The newest lengths, and their median as it was told last; None of fewer than `MIN_ROWS`."""

    def __init__(self) -> None:
        self.told: int | None = None
        self._newest = Recent(MAX_ROWS)

    def add(self, tokens: int) -> bool:
        """Returns whether another median is told from now on."""
        self._newest.add(tokens)
        if len(self._newest) < MIN_ROWS:
            return False
        median = round(self._newest.median())
        if self.told is not None and abs(median - self.told) <= TOLD_ANEW * self.told:
            return False
        self.told = median
        return True
