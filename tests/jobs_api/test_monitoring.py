"""What a scrape shows, and the dashboard and alert rules made of it: checked by promtool, and loaded by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harvester.core import ServiceTier
from harvester.engine.frontend.metrics import ClassMetrics
from harvester.engine.shared.settings import Slo
from harvester.errors import NoReplicaError, StorageError
from harvester.ports import free_port
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.metrics_api import Fleet, is_at_risk, merged
from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.spec import PartStats
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock, scripted_plan
from tools import prometheus
from tools.site.reference import metric_families

MONITORING = Path(__file__).parents[2] / "docs" / "operate" / "monitoring"
WAIT_S = 60.0
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="session")
def prometheus_tools() -> None:
    why = prometheus.have()
    if why is not None:
        pytest.skip(why)


def replica_text(rows: int) -> str:
    registry = CollectorRegistry()
    Counter("harvester_steps", "Engine steps.", registry=registry).inc(rows)
    metrics = ClassMetrics(registry)
    metrics.first_token(0.2, Slo(0.1, 0.1), ServiceTier.PRIORITY)
    metrics.first_token(0.05, Slo(0.1, 0.1), ServiceTier.DEFAULT)
    return generate_latest(registry).decode()


class Server:
    """The jobs application over a ledger in this process, with scripted replicas."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        folder = StateFolder(root)
        folder.prepare()
        self.ledger = Ledger(Path(":memory:"), folder.jobs, lease_s=10.0, now_s=self.clock(), new_server=True)
        self.told: list[dict[str, Any]] = []
        self.asked = 0
        self.wanted = {"scripted": 3}
        direct = DirectLedger(self.ledger, self.clock)
        self.fleet = Fleet(direct, self.replicas, "scripted", lambda: self.wanted)
        app = jobs_api(direct, JobPlanner(folder, HarvestConfig(), "scripted"), self.info, fleet=self.fleet)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs")

    async def replicas(self) -> list[dict[str, Any]]:
        self.asked += 1
        if not self.told:
            raise NoReplicaError("no replica answers")
        return self.told

    async def info(self) -> dict[str, Any]:
        return {}

    async def text(self) -> str:
        answer = await self.http.get("/metrics")
        assert answer.status_code == 200
        return answer.text

    async def scrape(self) -> Samples:
        families = list(text_string_to_metric_families(await self.text()))
        names = [family.name for family in families]
        assert len(names) == len(set(names)), "a family twice is refused by Prometheus"
        return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def summed(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for (found, has), value in samples.items() if found == name and labels.items() <= dict(has).items())


async def test_counters_of_all_replicas_add_up_in_one_scrape(server: Server) -> None:
    server.told = [{"replica": str(rank), "id": f"r{rank}", "text": replica_text(10 * (rank + 1))} for rank in range(3)]
    samples = await server.scrape()
    assert summed(samples, "harvester_steps_total") == 60
    assert summed(samples, "harvester_steps_total", replica="2", model="scripted") == 30
    assert summed(samples, "harvester_replicas") == 3 == summed(samples, "harvester_replicas_wanted")


async def test_latencies_are_told_apart_by_class_and_tier(server: Server) -> None:
    server.told = [{"replica": "0", "id": "r0", "text": replica_text(1)}]
    samples = await server.scrape()
    labels = {"class": "online", "tier": "priority"}
    assert summed(samples, "harvester_ttft_seconds_count", **labels) == 1
    assert summed(samples, "harvester_ttft_seconds_sum", **labels) == pytest.approx(0.2)


def odd_text(rank: int) -> str:
    """What a replica may tell at worst: labels of our names and of names that end like them, marks within values, families of its own."""
    registry = CollectorRegistry()
    odd = Counter("odd", 'A \\ and a "\nline.', ["base_model", "path"], registry=registry)
    for path in ('a "quoted" \\ {one}', "}} 7", ',model="x"', ",replica=", "", "two\nlines", "a\u2028b"):
        odd.labels("base", path).inc(rank + 0.5)
    Gauge("loaded", "Models.", ["model", "replica", "z"], registry=registry).labels('the "other"', "theirs", "").set(rank)
    Gauge("bare", "", registry=registry).set(float("nan") if rank else float("inf"))
    for name in ("wait", f"wait_{rank}"):  # one that both replicas have, and one of its own
        Histogram(f"{name}_seconds", "Waits.", ["class"], registry=registry).labels("online").observe(0.2)
    return generate_latest(registry).decode()


async def test_a_scrape_shows_every_sample_of_every_replica_as_it_was_told(server: Server) -> None:
    server.told = [{"replica": str(rank), "id": f"r{rank}", "text": odd_text(rank)} for rank in range(2)]
    server.told.append({"replica": "0", "id": "r2", "text": odd_text(2), "model": 'org/"other"'})
    told = {}
    for one in server.told:
        for sample in (sample for family in text_string_to_metric_families(one["text"]) for sample in family.samples):
            labels = {"model": one.get("model", "scripted"), **sample.labels, "replica": one["replica"]}
            told[sample.name, tuple(sorted(labels.items()))] = str(sample.value)  # nan is not nan
    shown = {key: str(value) for key, value in (await server.scrape()).items() if not key[0].startswith("harvester_")}
    assert shown == told


async def test_scrapes_at_once_ask_the_replicas_once_and_leave_the_event_loop_free(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    worked_in: list[threading.Thread] = []

    def seen(*given: Any) -> Any:
        worked_in.append(threading.current_thread())
        return merged(*given)

    monkeypatch.setattr("harvester.serve.http.metrics_api.merged", seen)
    server.told = [{"replica": "0", "id": "r0", "text": replica_text(7)}]
    first, *others = await asyncio.gather(*(server.text() for _ in range(3)))
    assert (server.asked, others) == (1, [first, first])
    await server.text()
    assert (server.asked, len(worked_in)) == (2, 2)
    assert threading.current_thread() not in worked_in


async def test_a_model_without_replicas_is_told_apart_from_one_that_has_some(server: Server) -> None:
    server.wanted = {"scripted": 2, "small": 1}
    server.told = [{"replica": str(rank), "id": f"r{rank}", "text": ""} for rank in range(2)]
    samples = await server.scrape()
    for model, found, wanted in (("scripted", 2, 2), ("small", 0, 1)):
        assert summed(samples, "harvester_replicas", model=model) == found
        assert summed(samples, "harvester_replicas_wanted", model=model) == wanted


async def test_a_replica_keeps_its_label_when_ray_gives_it_another_rank(server: Server) -> None:
    """Else the counters under a label would jump to those of another process."""

    async def steps(ranks: dict[str, int]) -> dict[str, float]:
        """The counter of steps by label; ``ranks``: of each replica that answers. Replica c has made 30 steps, and so on."""
        made = {"a": 10, "b": 20, "c": 30, "d": 40}
        server.told = [{"replica": str(rank), "id": name, "text": replica_text(made[name])} for name, rank in ranks.items()]
        found = {
            dict(labels)["replica"]: value for (name, labels), value in (await server.scrape()).items() if name == "harvester_steps_total"
        }
        return dict(sorted(found.items()))

    assert await steps({"a": 0, "b": 1, "c": 2}) == {"0": 10, "1": 20, "2": 30}
    assert await steps({"c": 0, "b": 1}) == {"1": 20, "2": 30}, "a has gone, and c has its rank"
    assert await steps({"c": 0, "b": 1, "a": 2}) == {"0": 10, "1": 20, "2": 30}, "it had only missed a scrape"
    assert await steps({"c": 0, "b": 1, "d": 2}) == {"0": 40, "1": 20, "2": 30}, "a new one gets the number of one that has gone"


async def test_a_replica_that_leaves_is_not_counted_beside_its_successor(server: Server) -> None:
    server.told = [{"replica": "0", "id": name, "text": replica_text(10)} for name in ("new", "old")]
    assert summed(await server.scrape(), "harvester_steps_total") == 10


async def refused(ended: int) -> None:
    raise StorageError("cannot open the ledger: its database is away")


async def silent(ended: int) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("away", [refused, silent])
async def test_without_replicas_or_ledger_a_scrape_still_says_so(server: Server, monkeypatch: pytest.MonkeyPatch, away: Any) -> None:
    server.ledger.submit(scripted_plan("a", 8, 4), new=True)
    samples = await server.scrape()
    assert (summed(samples, "harvester_ledger_up"), summed(samples, "harvester_jobs")) == (1, 1)
    monkeypatch.setattr(server.fleet.ledger, "now", away)
    monkeypatch.setattr("harvester.serve.http.metrics_api.LOOK_WAIT_S", 0.0)
    samples = await server.scrape()
    assert summed(samples, "harvester_replicas") == 0
    assert [value for (name, _), value in samples.items() if name == "harvester_ledger_up"] == [0]
    assert not any(name.startswith("harvester_job") for name, _ in samples)


async def test_jobs_are_counted_by_state_rows_errors_leases_and_deadlines(server: Server) -> None:
    ledger, clock = server.ledger, server.clock
    ledger.submit(scripted_plan("a", 8, 4), new=True)
    ledger.submit(scripted_plan("late", 8, 4), new=True)
    ledger.pause("late", clock())
    first, second = (ledger.lease("r", "scripted", clock()) for _ in range(2))
    assert first is not None
    assert second is not None
    ledger.commit(
        first.lease_id, "a", first.slice.slice_id, PartStats(rows_ok=3, rows_error=1, prompt_tokens=40, output_tokens=40), clock()
    )
    clock.advance(11.0)
    ledger.expire(clock())
    samples = await server.scrape()
    assert summed(samples, "harvester_jobs", state="running") == 1 == summed(samples, "harvester_jobs", state="paused")
    assert summed(samples, "harvester_job_rows_total", status="ok") == 3
    assert summed(samples, "harvester_job_rows_total", status="error") == 1
    assert summed(samples, "harvester_leases_granted_total") == 2
    assert summed(samples, "harvester_leases_lost_total") == 1
    assert summed(samples, "harvester_leases") == 0 == summed(samples, "harvester_jobs_at_risk")


async def test_a_job_that_ends_after_its_deadline_by_its_forecast_is_at_risk(server: Server) -> None:
    plan = scripted_plan("late", 1000, 10)
    spec = plan.spec.model_copy(update={"deadline_at_s": server.clock() + 60.0})
    server.ledger.submit(plan.model_copy(update={"spec": spec}), new=True)
    view = server.ledger.jobs()[0]
    risks = {eta: is_at_risk(view.model_copy(update={"eta_high_s": eta}), server.clock()) for eta in (None, 30.0, 61.0)}
    assert risks == {None: False, 30.0: False, 61.0: True}
    assert is_at_risk(view.model_copy(update={"standing": "has made no progress for 20 min"}), server.clock())


async def test_the_number_of_series_does_not_grow_with_jobs(server: Server) -> None:
    server.ledger.submit(scripted_plan("first", 8, 4), new=True)
    before = set(await server.scrape())
    for number in range(50):
        server.ledger.submit(scripted_plan(f"job-{number}", 8, 4), new=True)
    assert set(await server.scrape()) == before


def expressions() -> dict[str, str]:
    """Every expression of the alerts and the dashboard, by where it stands."""
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    found = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    board = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


def known_names() -> set[str]:
    names = {"up"}
    for family in metric_families():
        names |= {family.name, *(f"{family.name}_{end}" for end in ("total", "bucket", "sum", "count"))}
    return names


def test_dashboard_and_alerts_name_only_metrics_that_exist() -> None:
    used = {where: set(re.findall(r"\b(?:harvester_\w+|up)\b", text)) for where, text in expressions().items()}
    assert all(used.values()), "an expression without a metric"
    known = known_names()
    assert {where: sorted(names - known) for where, names in used.items() if names - known} == {}


def test_every_label_that_is_asked_for_is_one_that_the_metric_has() -> None:
    has = {"class", "tier", "objective", "kept", "model", "replica", "state", "status", "cause", "le", "job", "severity"}
    asked = {label for text in expressions().values() for label in re.findall(r"(\w+)(?:=~|!~|!=|=)\"", text)}
    grouped = {
        name.strip() for text in expressions().values() for names in re.findall(r"by \(([^)]*)\)", text) for name in names.split(",")
    }
    assert asked | grouped <= has
    assert {"tier", "class", "model", "replica"} <= asked | grouped


def test_a_replica_is_told_apart_by_its_model_too() -> None:
    """Each model numbers its own replicas from 0."""
    groups = [set(re.split(r"\W+", names)) for text in expressions().values() for names in re.findall(r"by \(([^)]*)\)", text)]
    assert any("replica" in names for names in groups)
    assert [names for names in groups if "replica" in names and "model" not in names] == []
    board = json.loads((MONITORING / "dashboard.json").read_text())
    legends = [target["legendFormat"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert [legend for legend in legends if "{{replica}}" in legend and "{{model}}" not in legend] == []


def test_the_panels_of_the_dashboard_do_not_overlap_and_each_has_a_unit_and_a_legend() -> None:
    board = json.loads((MONITORING / "dashboard.json").read_text())
    cells = [
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) >= 12
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${source}"
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@pytest.mark.usefixtures("prometheus_tools")
@pytest.mark.parametrize("words", ["check rules alerts.yml", "test rules alerts.test.yml", "check config prometheus.yml"])
def test_promtool_accepts_the_files(words: str) -> None:
    done = subprocess.run(["promtool", *words.split()], cwd=MONITORING, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("prometheus_tools")
def test_promtool_parses_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "1m").replace("$model", ".*")}
        for number, text in enumerate(expressions().values())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def scraped(text: str) -> Iterator[tuple[str, threading.Event]]:
    """A server that answers ``/api/metrics``, and the event of its second scrape."""
    twice, count = threading.Event(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            count[0] += self.path == "/api/metrics"
            self.send_response(200 if self.path == "/api/metrics" else 404)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())
            if count[0] >= 2:
                twice.set()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{http.server_port}", twice
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[str]:
    """The shipped files, looked at every second instead of every 15. Yields its address."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0] |= {"scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", folder)
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(WAIT_S)


@pytest.mark.usefixtures("prometheus_tools")
async def test_a_real_prometheus_scrapes_the_metrics_and_its_alerts_are_about_them(server: Server, tmp_path: Path) -> None:
    server.told = [{"replica": str(rank), "id": f"r{rank}", "text": replica_text(5)} for rank in range(2)]
    server.ledger.submit(scripted_plan("a", 8, 4), new=True)
    with scraped(await server.text()) as (target, twice), running_prometheus(tmp_path, target) as url:
        assert twice.wait(WAIT_S), (tmp_path / "log").read_text()[-2000:]
        transport = httpx.AsyncHTTPTransport(retries=5)
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, transport=transport) as http:

            async def value(expr: str) -> dict[str, float]:
                found = (await http.get("/api/v1/query", params={"query": expr})).json()["data"]["result"]
                return {one["metric"].get("replica", ""): float(one["value"][1]) for one in found}

            while not await value("harvester_replicas"):  # stored a moment after the scrape; the test's own timeout bounds it
                pass
            assert await value("sum(up)") == {"": 1.0}
            assert await value("sum(harvester_steps_total)") == {"": 10.0}
            assert await value("sum by (replica) (harvester_steps_total)") == {"0": 5.0, "1": 5.0}
            rules = (await http.get("/api/v1/rules")).json()["data"]["groups"][0]["rules"]
            assert len(rules) == 11
            while not await value('ALERTS{alertname="HarvesterReplicasMissing"}'):  # two of three answer
                pass
            assert not await value('ALERTS{alertname="HarvesterUnreachable"}')
