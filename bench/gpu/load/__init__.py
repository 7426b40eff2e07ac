"""What the engines of the GPU bench are asked."""
