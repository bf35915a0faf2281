"""``mmkcr export``, from a clone: see :mod:`mmkcr.cli.export`."""

from mmkcr.cli.export import main

if __name__ == '__main__':
    main()
