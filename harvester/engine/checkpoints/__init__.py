"""KV checkpoints in host memory, on vLLM's offloading framework.

``connector`` is what vLLM loads; ``planner`` (engine core) decides which blocks are copied with `harvester.policy.kv.checkpoint` and keeps
account of the host blocks with `harvester.policy.kv.hostpool`; ``copies`` (workers) has them copied, by a thread (``copier``) or a device
(``devicecopier``). ``room``, ``budget`` and ``growth`` say how much host memory there is for it.
"""
