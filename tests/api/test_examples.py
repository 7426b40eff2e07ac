"""The examples run, as they are, against a real server."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import nbclient
import nbformat
import pytest
import ray

from bench.harness.servers.jobs_server import JobsServer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOODS = [(1, "of: good soup"), (2, "of: cold tea")]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the examples by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names: list[str] = []

    def load(name: str) -> Any:
        names.append(name)
        return __import__(name)

    yield load
    for name in names:
        sys.modules.pop(name, None)


def test_the_notebook_runs_in_a_kernel_and_shows_what_it_says(server: JobsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVESTER_URL", server.url)
    with warnings.catch_warnings():  # what the kernel's libraries warn of
        warnings.simplefilter("ignore")
        notebook = nbformat.read(EXAMPLES / "speeches.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    shown = json.dumps([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    assert '<progress max=\\"8\\" value=\\"8\\">' in shown  # the bar of the job that ended
    assert "('some', True)" in shown  # typed answers
    assert "{'status': 'ok', 'rows': 8}" in shown


def test_a_prompt_is_a_duckdb_function(server: JobsServer, loaded: Any) -> None:
    assert loaded("duckdb_function").main(server.url) == [*MOODS, *MOODS]


@pytest.mark.serve
def test_a_step_of_ray_data_is_harvested(server: JobsServer, loaded: Any) -> None:
    path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        with warnings.catch_warnings():  # what Ray Data warns of
            warnings.simplefilter("ignore")
            rows = loaded("ray_data").main(server.url)
    finally:
        ray.shutdown()
    assert [(row["id"], row["output"]) for row in rows] == [(0, "of: good soup"), (1, "of: cold tea"), (2, "of: warm bread")]


def test_a_dbt_model_gives_the_relation_that_dbt_stores(server: JobsServer, loaded: Any) -> None:
    """With what dbt-duckdb hands a model (a relation, a config); dbt itself is not installed here."""
    with duckdb.connect() as connection:
        reviews = connection.sql("select * from (values (1, 'good soup'), (2, 'cold tea')) t(id, text)")
        config = type("Config", (), {"__call__": lambda self, **given: None, "get": lambda self, name: server.url})()
        dbt = SimpleNamespace(ref=lambda name: reviews, config=config)
        stored = loaded("dbt_model").model(dbt, connection)
        assert sorted(stored.project("id, output").fetchall()) == MOODS
