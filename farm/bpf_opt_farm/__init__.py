"""Runs bpf-opt over many machines.

The unit of work is a function with a fixed budget, named by the hash of all that its result depends on. What is
finished lies in a store, complete or not at all; so whatever is killed, workers or driver, nothing that is there is
done again. Where to begin reading: `farm` (what the driver does), `work` (what workers do), `store` (where results
lie).
"""

__version__ = "0.1.0"
