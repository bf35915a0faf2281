"""``mmkcr test``, from a clone: see :mod:`mmkcr.cli.test`."""

from mmkcr.cli.test import main

if __name__ == '__main__':
    main()
