"""Mathematics and statistics, without models."""
