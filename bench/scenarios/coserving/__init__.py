"""Chat beside batch work on the same engine."""
