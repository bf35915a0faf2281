"""Heads that the host libraries lack."""
