"""Deployment: models prepared for a runtime, exported, and opened there."""
