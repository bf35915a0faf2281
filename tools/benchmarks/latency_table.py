"""``mmkcr latency-table``, from a clone: see :mod:`mmkcr.cli.latency_table`."""

from mmkcr.cli.latency_table import main

if __name__ == '__main__':
    main()
