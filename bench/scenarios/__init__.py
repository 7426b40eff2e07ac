"""The scenarios, by question. One file is one scenario, with a function `run(options)`."""
