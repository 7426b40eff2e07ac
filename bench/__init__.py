"""Measurements of whole systems: each scenario is one run on one machine, written down as one JSON file."""
