"""``mmkcr flops``, from a clone: see :mod:`mmkcr.cli.flops`."""

from mmkcr.cli.flops import main

if __name__ == '__main__':
    main()
