"""Device time of a replica's engine, given to the slices that it was spent on: for the report of what was harvested."""

from __future__ import annotations

from jobs.config import PriceConfig
from jobs.engine import RowEngine
from jobs.spec import PartStats

HOUR_S = 3600.0


class DeviceTime:
    """Used from one event loop. The slices' charges add up to the engine's time on jobs since this object was made."""

    def __init__(self, engine: RowEngine, price: PriceConfig | None) -> None:
        self._engine, self._price = engine, price
        self._given_s = engine.harvested_s

    def charged(self, stats: PartStats, own_tokens: int, other_tokens: int) -> PartStats:
        """``stats`` with the device time of a slice that ends: of the time not charged yet, its share by tokens of all slices in work.

        Also with what that costs, or with the prices of tokens.
        """
        open_s = max(0.0, self._engine.harvested_s - self._given_s)
        tokens = own_tokens + other_tokens
        device_s = open_s * own_tokens / tokens if tokens else 0.0
        self._given_s += device_s
        if self._price is None:
            return stats.model_copy(update={"device_s": device_s})
        return stats.model_copy(update={"device_s": device_s, "currency": self._price.currency, **_cost(self._price, device_s)})


def _cost(price: PriceConfig, device_s: float) -> dict[str, object]:
    """Of the device time, if that has a price; else the prices of tokens, because only the ledger knows which tokens of a part are new."""
    if price.per_gpu_hour is not None:
        return {"cost": device_s / HOUR_S * price.per_gpu_hour}
    return {"token_prices": (price.prompt_per_million, price.output_per_million)}
