"""Deployment: models prepared for a runtime, exported, and opened there."""

from mmkcr import registry  # noqa: F401  (before any host library)
