"""Version of mmkcr."""

__version__ = '0.2.0'
