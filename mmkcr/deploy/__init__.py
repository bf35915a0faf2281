"""Models as they are deployed: prepared for a runtime, exported, opened there."""
