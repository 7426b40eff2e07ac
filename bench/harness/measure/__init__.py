"""What was seen, and the figures made of it."""
