"""The writer of the embedded model: lessons, circuits, weights, and the count of what it gets right."""
