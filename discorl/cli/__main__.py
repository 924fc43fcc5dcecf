"""`python -m discorl.cli` is the command `discorl`."""

from discorl.cli import main

main()
