"""``python -m longlens`` is the command ``longlens``."""

import sys

from longlens.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
