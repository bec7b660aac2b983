"""Networks made smaller: which channels go, and how they are taken out."""
