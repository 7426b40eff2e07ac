"""How the processes of an engine start, and how they end."""
