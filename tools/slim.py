"""``mmkcr slim``, from a clone: see :mod:`mmkcr.cli.slim`."""

from mmkcr.cli.slim import main

if __name__ == '__main__':
    main()
