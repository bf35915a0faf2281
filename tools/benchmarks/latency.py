"""``mmkcr latency``, from a clone: see :mod:`mmkcr.cli.latency`."""

from mmkcr.cli.latency import main

if __name__ == '__main__':
    main()
