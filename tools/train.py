"""``mmkcr train``, from a clone: see :mod:`mmkcr.cli.train`."""

from mmkcr.cli.train import main

if __name__ == '__main__':
    main()
