"""Progress bars and tables, as text."""

from .progress import shown
from .tables import format_table

__all__ = ['format_table', 'shown']
