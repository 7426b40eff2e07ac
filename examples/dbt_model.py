"""A dbt Python model (``models/summaries.py`` of a project on dbt-duckdb): the upstream table, with a column of answers.

If dbt runs the model again over the same rows, the same job is found.
"""

from __future__ import annotations

from typing import Any

import harvester


def model(dbt: Any, session: Any) -> Any:
    dbt.config(materialized="table")
    with harvester.connect(dbt.config.get("harvester_url")) as client:
        return client.map(dbt.ref("reviews"), "Name the mood of: {text}")
