"""Stands for harvester's `connectors` in processes that harvester starts: see `harvester.own`."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3] / "connectors")]
