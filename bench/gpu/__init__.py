"""``python -m bench gpu``: everything that only a GPU can show, on a machine with torch, transformers and vLLM and nothing else."""
