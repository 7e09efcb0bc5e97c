"""Fast paths for operations that have a plain PyTorch definition."""
