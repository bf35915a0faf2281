"""Measurements on features and models, over a data set."""
