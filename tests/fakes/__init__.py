"""What stands in for something real in tests: engines, devices, schedulers, workers and servers; and worlds that several files set up."""
