"""``mmkcr compress``, from a clone: see :mod:`mmkcr.cli.compress`."""

from mmkcr.cli.compress import main

if __name__ == '__main__':
    main()
