"""This engine beside others: one run, one machine, calls that take turns, outputs that agree.

python -m tests.bench.peers --install        # the others, each in an environment of its own
python -m tests.bench.peers                  # measures, and writes docs/benchmarks.md
"""
