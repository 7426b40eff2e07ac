"""The papers' figures, each a function that gives what it shows as numbers."""
