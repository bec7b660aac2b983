"""Writes feature_maps.npz of a run: what two channels see in real images.

It lies beside results.json, whose row says which channels they are.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fuprune.files import write_whole


def write_feature_maps(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the fields of `results.PictureArrays`, whole or not at all."""
    write_whole(
        directory / "feature_maps.npz",
        lambda file: np.savez(file, allow_pickle=False, **arrays),
    )
