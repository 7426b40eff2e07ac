"""Verifies that tokens, signals to end steps, step times and KV copies are right on this machine, with this model.

`whole.verify` starts engines of its own, each in a process of its own. `short.verify_short` checks an engine that serves.
"""
