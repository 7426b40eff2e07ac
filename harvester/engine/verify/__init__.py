"""Whether tokens, ended steps, times and KV copies are right on this machine, with this model.

`whole.verify` starts engines of its own, each in a process of its own. `short.verify_short` looks at an engine that serves.
"""
