"""Sample prompts and right answers for the embedded model, task by task, and the texts that they are made of."""
