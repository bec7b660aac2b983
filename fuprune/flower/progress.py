"""How the server's lines of progress are told from Flower's in the log of a run."""

TOLD = "fuprune: "  # begins each of them
FAILED = f"{TOLD}error: "  # begins the one that says why a run stopped
FINISHED = "finished"  # the last one of a run that did not stop
