"""``mmkcr zoo``, from a clone: see :mod:`mmkcr.cli.zoo`."""

from mmkcr.cli.zoo import main

if __name__ == '__main__':
    main()
