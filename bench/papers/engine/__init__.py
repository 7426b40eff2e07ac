"""One replica as a compiled loop. Numbers (`Rules`) say how a paper's system treats KV, prompts and order."""
