"""``mmkcr frontier``, from a clone: see :mod:`mmkcr.cli.frontier`."""

from mmkcr.cli.frontier import main

if __name__ == '__main__':
    main()
