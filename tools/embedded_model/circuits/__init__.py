"""The network and the circuits that are written into it."""
