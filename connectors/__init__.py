"""Tables in and out, in Arrow: `connectors.open` reads what a user names, `connectors.parquet.parts` keeps results."""
