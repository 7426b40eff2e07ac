"""The order among online requests."""
