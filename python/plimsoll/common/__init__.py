"""What does not depend on PyTorch: the recipes."""
