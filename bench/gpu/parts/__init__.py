"""The parts of the GPU bench; each module has a `PART`."""
