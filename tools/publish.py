"""``mmkcr publish``, from a clone: see :mod:`mmkcr.cli.publish`."""

from mmkcr.cli.publish import main

if __name__ == '__main__':
    main()
