"""What builds and checks the project itself, and is no part of it."""
