"""`python -m tfdp` is the command line `tfdp`."""

import sys

from tfdp.cli import main

if __name__ == "__main__":
    sys.exit(main())
