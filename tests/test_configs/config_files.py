"""Where the configs are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / 'configs').rglob('*.py')
                 if '_base_' not in path.parts)
