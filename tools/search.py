"""``mmkcr search``, from a clone: see :mod:`mmkcr.cli.search`."""

from mmkcr.cli.search import main

if __name__ == '__main__':
    main()
