"""What Flower loads: the two apps of `fuprune.flower`."""
