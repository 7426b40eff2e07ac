"""The documentation as a site: `python -m tools.site` builds it, and checks its links, without a network."""
