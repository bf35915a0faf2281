"""Layers of supernets and subnets."""
