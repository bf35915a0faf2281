"""Runs that were stopped or killed go on as if they had not been, and refuse a checkpoint that
does not fit.
"""
