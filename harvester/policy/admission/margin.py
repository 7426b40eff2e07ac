"""The share of KV that is kept free because answers may be longer than expected. It rises while too much is computed again."""

from __future__ import annotations

LEAST, MOST = 0.02, 0.3  # of all KV
RECOMPUTED = 0.01  # share of the offline tokens that may be computed again
RAISED = 1.5
LOWERED = 0.9


class KvMargin:
    """``share``: of the KV. It is adjusted whenever as many offline tokens were computed as the KV holds.

    It rises by half where more than a hundredth was computed again, and else falls by a tenth: four quiet rounds undo one rise.
    """

    def __init__(self) -> None:
        self.share = LEAST
        self._computed = self._recomputed = 0

    def ran(self, computed: int, recomputed: int, kv_tokens: int) -> None:
        """A step computed ``computed`` offline tokens. ``recomputed``: tokens to compute again, from it on. The KV holds ``kv_tokens``."""
        self._computed += computed
        self._recomputed += recomputed
        if self._computed < kv_tokens:
            return
        over = self._recomputed > RECOMPUTED * self._computed
        self.share = min(MOST, RAISED * self.share) if over else max(LEAST, LOWERED * self.share)
        self._computed = self._recomputed = 0
