"""Rows, slices, parts and batches around the engine."""
