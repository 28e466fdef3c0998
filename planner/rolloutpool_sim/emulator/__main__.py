"""Entry point of `python3 -m rolloutpool_sim.emulator`."""

import sys

from rolloutpool_sim.emulator.server import main

sys.exit(main())
