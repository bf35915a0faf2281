"""Version of mmkcr."""

__version__ = '0.1.0'
