"""Quickstart: the whole pipeline on scikit-learn's digits, on a laptop's CPU.

Paper: none of its tables; the same method on data that comes with a dependency (1,797
  images of 8x8 pixels, ten classes).
Command: make quickstart
  or python -m fuprune.main --config configs/quickstart.py --workdir runs/quickstart
Cost: meant for less than six minutes on two cores, audit and report included.
Expected: class 9 is forgotten (U-set accuracy near 0) and the others are within two
  points of where they were.
"""

from fuprune import config as config_lib


def get_config():
    """Returns the setting that also runs when no --config is given."""
    return config_lib.quickstart()
