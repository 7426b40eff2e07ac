"""The servers under measurement, each a process of its own."""
