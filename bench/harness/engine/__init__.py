"""What runs inside an engine core in a measurement: schedulers and workers that count, wait or are slow."""
