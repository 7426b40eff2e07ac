"""What the embedded model is to answer, task by task, and text to ask it about."""
