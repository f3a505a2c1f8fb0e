"""`python -m kalos_memory.cli` is `kalos`."""

from kalos_memory.cli import main

main()
