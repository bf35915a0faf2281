"""``mmkcr distil``, from a clone: see :mod:`mmkcr.cli.distil`."""

from mmkcr.cli.distil import main

if __name__ == '__main__':
    main()
