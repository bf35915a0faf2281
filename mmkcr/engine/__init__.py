"""Hooks, optimizers, resuming, and the runner of a config with `compression`."""
