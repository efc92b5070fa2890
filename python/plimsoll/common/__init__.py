"""The recipes, which do not depend on PyTorch."""
