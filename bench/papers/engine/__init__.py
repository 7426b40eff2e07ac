"""One replica as a compiled loop. Numbers choose among the rules of the papers' systems for KV, prompts and order."""
