"""What the rounds of scenario ``checkpoint`` say: figures of each engine, ratios of two with their spread, and the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness.load.checkpoint_load import Seen, all_seen
from bench.harness.measure.latency import percentiles
from bench.harness.measure.rounds import pooled, ratio_of_percentiles, ratio_of_rounds
from bench.harness.measure.work import Work


@dataclass(frozen=True, slots=True)
class Round:
    """One run of one engine. ``done``: what the shared state counted."""

    seconds: float
    seen: Seen
    work: Work
    done: dict[str, float]

    @property
    def lost(self) -> int:
        """Recomputed tokens after preemptions, without those of steps that were ended early."""
        return max(0, self.work.recomputed - round(self.done["taken_back_tokens"]))

    @property
    def lost_s(self) -> float:
        """Seconds to recompute those tokens, and of all copies, as if nothing ran beside them."""
        copies_s = self.done["store_s"] + self.done["load_s"]
        return self.work.recomputed_s * self.lost / max(1, self.work.recomputed) + copies_s


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Of all rounds together."""
    seconds = sum(each.seconds for each in rounds)
    work, done = pooled([asdict(each.work) for each in rounds]), pooled([each.done for each in rounds])
    seen = all_seen([each.seen for each in rounds])
    return {
        "seconds": round(seconds, 2),
        "answered": len(seen.latency_s),
        "latency_ms_per_token": seen.normalized_ms(),
        "ttft_ms": percentiles([1e3 * value for value in seen.ttft_s]),
        "tpot_ms": percentiles([1e3 * value for value in seen.gaps_s]),
        "online_requests": seen.online_requests,
        "offline_tokens_per_s": round(work["offline"] / seconds, 1),
        "recomputed_tokens": round(work["recomputed"]),
        "recomputed_share": round(work["recomputed"] / max(1, work["tokens"]), 5),
        "recomputed_share_after_preemptions": round(_lost_share(rounds), 5),
        "recomputed_share_of_time": round(work["recomputed_s"] / seconds, 5),
        "preemptions": seen.preemptions,
        "swap_blocked_share": round(_blocked_share(rounds), 5),
        "resume_delay_ms": round(1e3 * done["resume_s"] / max(1.0, done["resumed"]), 2),
        "prefetch_hit_rate": round(done["resumed_whole"] / max(1.0, done["resumed"]), 4),
        "store_mib_per_s": round(done["stored_bytes"] / max(1e-9, done["store_s"]) / 2**20, 1),
        "load_mib_per_s": round(done["loaded_bytes"] / max(1e-9, done["load_s"]) / 2**20, 1),
        "copied_share_of_time": round((done["store_s"] + done["load_s"]) / seconds, 5),
        "counters": {name: value for name, value in done.items() if name in COUNTERS},
    }


def _lost_share(rounds: Sequence[Round]) -> float:
    """Share of all token work that was recomputed after preemptions."""
    return sum(each.lost for each in rounds) / max(1, sum(each.work.tokens for each in rounds))


def _blocked_share(rounds: Sequence[Round]) -> float:
    """Share of the requests' whole latency that they waited for their KV to be read back."""
    waited = sum(each.done["resume_s"] for each in rounds)
    return waited / max(1e-9, sum(seconds for each in rounds for seconds, _ in each.seen.latency_s))


COUNTERS = (
    "stored_blocks", "loaded_blocks", "waited_blocks", "failed_copies", "evicted_blocks", "resumed", "resumed_whole", "lost_tokens",
    "edge_tokens", "uncovered_tokens", "failed_tokens", "preempted", "ended_steps", "taken_back_tokens", "swapped",
)  # fmt: skip


PAIRS = (
    ("incremental+partial", "vllm_priority"),
    ("incremental+partial", "recompute"),
    ("incremental", "recompute"),
    ("swap", "recompute"),
    ("plenty_on", "plenty_off"),
    ("plenty_copying", "plenty_off"),
)


def same(found: Mapping[str, Sequence[Round]]) -> bool:
    """Whether every answer that two engines gave to the end is the same, and there is one. A busy batch may round otherwise (README)."""
    tokens = [{name: ids for each in rounds for name, ids in each.seen.tokens.items()} for rounds in found.values()]
    first, *others = tokens or [{}]
    both = [first.keys() & other.keys() for other in others]
    return all(names and all(first[name] == other[name] for name in names) for names, other in zip(both, others, strict=True))


def ratios_of(found: Mapping[str, Sequence[Round]]) -> dict[str, dict[str, Any]]:
    ratios: dict[str, dict[str, Any]] = {}
    for one, other in PAIRS:
        if one in found and other in found:
            speeds = [[each.work.offline / each.seconds for each in found[name]] for name in (one, other)]
            ratios[f"offline_{one}_over_{other}"] = ratio_of_rounds(speeds[0], speeds[1])
            for figure in ("ttft_s", "gaps_s"):
                values = [[getattr(each.seen, figure) for each in found[name]] for name in (one, other)]
                ratios[f"p99_{NAMED[figure]}_{one}_over_{other}"] = ratio_of_percentiles(values[0], values[1], 99, seed=1)
    return ratios


NAMED = {"ttft_s": "ttft", "gaps_s": "tpot"}


def goals_of(
    found: Mapping[str, Sequence[Round]], chats: Mapping[float, Mapping[str, Sequence[Round]]], ratios: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Each goal with its measured value and whether it is met. Goals whose systems did not run are left out.

    The recovered cost of preemptions is measured twice. By throughput: the gain of offline work, over its gain if recomputing took no time;
    it may exceed 1. By time: the part of the time lost without checkpoints that is not lost with them (`Round.lost_s`). This is a lower
    bound, since all copies count as if nothing ran beside them. ``chats``: by load. Of a ratio of latencies the greatest counts, as in
    FastServe Fig. 15; ``loads`` has it at each load. Nothing is met where there was nothing to judge: no preemption, no answer.
    """
    ours, recompute = found["incremental+partial"], found["recompute"]
    blocked = max(_blocked_share(each) for each in (ours, *(at_load["chat_proactive"] for at_load in chats.values())))
    left = _lost_time(ours) / max(1e-9, _lost_time(recompute))
    gains = ratios["offline_incremental+partial_over_recompute"]
    lost = _lost_share(recompute) > 0.0
    is_gain = lost and gains["ratio"] is not None
    won = [round(_won_back(gain, _lost_time(recompute)), 4) for gain in (gains["ratio"], *gains["rounds"])] if is_gain else [None]
    goals = {
        "recomputed_share_at_most_0.01": _goal(round(_lost_share(ours), 5), lost and _lost_share(ours) <= 0.01),
        "throughput_won_back_of_what_preemption_cost_at_least_0.98": _goal(won[0], won[0] is not None and won[0] >= 0.98)
        | {"rounds": won[1:]},
        "time_won_back_of_what_preemption_cost_at_least_0.98": _goal(round(1 - left, 4) if lost else None, lost and left <= 0.02),
        "blocked_by_swapping_below_0.02": _goal(round(blocked, 5), blocked < 0.02),
    }
    for other, least in (("recompute", 2.7), ("reactive", 1.7)):
        loads = {
            load: ratio_of_rounds(latencies_ms(systems[f"chat_{other}"]), latencies_ms(systems["chat_proactive"]))
            for load, systems in chats.items()
        }
        most = max((ratio["ratio"] for ratio in loads.values() if ratio["ratio"] is not None), default=None)
        is_met = most is not None and most >= least
        goals[f"latency_{other}_over_proactive_at_least_{least}"] = {"measured": most, "loads": loads, "met": is_met}
    for name, ratio in ratios.items():
        if name.startswith("p99_") and name.endswith("_over_plenty_off"):
            goals[f"{name}_at_most_1.02"] = ratio | {"met": ratio["ratio"] is not None and ratio["ratio"] <= 1.02}
    if not lost:
        for name in OF_PREEMPTION:
            goals[name]["not_judged"] = "no token was computed again without checkpoints"
    return goals


OF_PREEMPTION = (
    "recomputed_share_at_most_0.01",
    "throughput_won_back_of_what_preemption_cost_at_least_0.98",
    "time_won_back_of_what_preemption_cost_at_least_0.98",
)


def _lost_time(rounds: Sequence[Round]) -> float:
    """Share of all time that preemptions and checkpoints took."""
    return sum(each.lost_s for each in rounds) / sum(each.seconds for each in rounds)


def _won_back(gain: float, lost: float) -> float:
    """``gain``: throughput over that without checkpoints, which loses the share ``lost`` of its time."""
    return (gain - 1.0) * (1.0 - lost) / max(1e-9, lost)


def latencies_ms(rounds: Sequence[Round]) -> list[float | None]:
    """Mean latency a token of each round; None where no chat was answered."""
    return [each.seen.normalized_ms()["mean"] for each in rounds]


def _goal(measured: float | None, met: bool) -> dict[str, Any]:
    return {"measured": measured, "met": met}
