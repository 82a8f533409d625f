"""``python -m longlens`` is the command ``longlens``."""

import sys

from longlens.cli.main import main

sys.exit(main())
