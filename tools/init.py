"""``mmkcr init``, from a clone: see :mod:`mmkcr.cli.init`."""

from mmkcr.cli.init import main

if __name__ == '__main__':
    main()
