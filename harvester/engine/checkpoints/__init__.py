"""KV checkpoints in host memory.

`planner` (engine core) decides which blocks are copied, with `harvester.policy.kv.checkpoint`, and keeps account of the host blocks with
`harvester.policy.kv.hostpool`; `coordinator` is what the scheduler calls. `worker.copies` (workers) has them copied by a thread (`copier`)
or a device (`devicecopier`). `budget`, `worker.room` and `worker.growth` bound the host memory. vLLM sees all this as its KV connector,
`harvester.engine.vllm.connector`.
"""
