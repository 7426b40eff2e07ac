"""The engines of the GPU bench, and what they tell of themselves."""
