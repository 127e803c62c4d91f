"""``python -m pams_parallel`` is the command ``pams-parallel``."""

import sys

from .cli import main

# Workers that are spawned import this module as well.
if __name__ == "__main__":
    sys.exit(main())
