"""Backbones of this package, and the methods' backbones by name."""
