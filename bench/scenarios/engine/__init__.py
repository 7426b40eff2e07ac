"""What harvester adds to a request and to a step."""
