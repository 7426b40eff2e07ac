"""A Ray Data pipeline with a harvested step: blocks of a data set become jobs, and their answers the next data set."""

from __future__ import annotations

import sys

import pyarrow as pa
import ray

import harvester


class Ask:
    """One client in each worker of the pool."""

    def __init__(self, url: str | None, prompt: str) -> None:
        self._client, self._prompt = harvester.connect(url), prompt

    def __call__(self, block: pa.Table) -> pa.Table:
        return self._client.map(block, self._prompt)  # type: ignore[no-any-return]


def main(url: str | None = None) -> list[dict[str, object]]:
    rows = ray.data.from_items([{"id": number, "text": text} for number, text in enumerate(["good soup", "cold tea", "warm bread"])])
    one = ray.data.ActorPoolStrategy(size=1)
    answered = rows.map_batches(
        Ask,
        fn_constructor_args=(url, "Name the mood of: {text}"),
        batch_format="pyarrow",
        batch_size=1024,
        compute=one,
    )
    return sorted(answered.take_all(), key=lambda row: row["id"])


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n")
