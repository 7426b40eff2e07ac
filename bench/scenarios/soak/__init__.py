"""Hours of mixed work with kills."""
