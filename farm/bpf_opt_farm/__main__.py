"""`python -m bpf_opt_farm`."""

import sys

from .cli import main

sys.exit(main())
