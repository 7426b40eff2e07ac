"""What a preemption costs, with and without KV checkpoints."""
