"""One replica as a compiled loop: what the papers' systems do with KV, prompts and turns, as numbers that a rule is chosen by."""
