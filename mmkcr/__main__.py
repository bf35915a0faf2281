"""``python -m mmkcr`` is the command ``mmkcr``."""

from mmkcr.cli.console import main

if __name__ == '__main__':
    main()
