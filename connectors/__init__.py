"""Tables in and out, in Arrow: `connectors.open.open_source` reads what a user names, `connectors.parts.PartsSink` keeps results."""
