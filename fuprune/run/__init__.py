"""One run: its phases, files, clocks, machine and record."""
