"""Every system of the papers that the compiled loop runs, by name."""

from __future__ import annotations

from bench.papers.systems.curve import CURVE_ORACLE, CURVES, GREEDY_SHORTEST
from bench.papers.systems.distserve import DISTSERVE
from bench.papers.systems.econoserve import ECONOSERVE, ECONOSERVE_D, ECONOSERVE_SD, ECONOSERVE_SDO, ORACLE
from bench.papers.systems.multires import MULTIRES
from bench.papers.systems.orca import ORCA
from bench.papers.systems.sarathi import SARATHI
from bench.papers.systems.srtf import SRTF
from bench.papers.systems.system import Simulated
from bench.papers.systems.vllm import VLLM, VLLM_2023

ALL: tuple[Simulated, ...] = (
    VLLM,
    VLLM_2023,
    SARATHI,
    ORCA,
    SRTF,
    MULTIRES,
    ECONOSERVE_D,
    ECONOSERVE_SD,
    ECONOSERVE_SDO,
    ECONOSERVE,
    ORACLE,
    DISTSERVE,
    GREEDY_SHORTEST,
    *CURVES.values(),
    CURVE_ORACLE,
)
SYSTEMS = {system.name: system for system in ALL}
