"""Mathematics without models: torch only."""
