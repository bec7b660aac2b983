"""Downloading and preparing TFDS sets without TensorFlow.

The CIFAR and MNIST families are prepared by subclasses of TFDS's own builders that do
the few steps for which the stock ones call TensorFlow; the result is a directory that
TFDS reads as its own. Other sets are left to their stock builders, which may ask for
TensorFlow.
"""

import difflib
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from fuprune.data import cifar, idx
from fuprune.data.dataset import DataUnavailableError
from fuprune.data.tfds_source import image_and_label_keys, import_tfds
from fuprune.errors import first_line

_MNIST_FAMILY = ("mnist", "fashion_mnist", "kmnist")


def registered_names(name: str) -> tuple[str, ...]:
    """The class names, or "0" to "U-1", of a set that TFDS knows, prepared or not."""
    info = import_tfds().builder(_registered(name).partition(":")[0]).info
    return tuple(info.features[image_and_label_keys(info, name)[1]].names)


def addresses(name: str) -> list[str]:
    """The URLs that TFDS would download a set from."""
    return list(_builder_class(_registered(name)).url_infos)


def prepare(name: str, data_dir: pathlib.Path) -> None:
    """Downloads and prepares a set as array_record files.

    Raises:
      DataUnavailableError: one line saying why it did not succeed.
    """
    # The stock sets' sums are known to TFDS; one that is not is refused.
    config = import_tfds().download.DownloadConfig(force_checksums_validation=True)
    try:
        _make_builder(name, data_dir).download_and_prepare(download_config=config)
    except DataUnavailableError:
        raise
    except ImportError as error:
        raise DataUnavailableError(
            f"TFDS needs {error.name or 'another package'} to prepare it"
        ) from error
    # TFDS lets through whatever its many parts raise.
    except Exception as error:
        raise DataUnavailableError(
            f"TFDS did not prepare it ({type(error).__name__}: {first_line(error)})"
        ) from error


def _make_builder(name: str, data_dir: pathlib.Path) -> Any:
    options = {"data_dir": str(data_dir), "file_format": "array_record"}
    if name in cifar.LAYOUTS:
        return _without_tensorflow(name, _cifar_examples)(**options)
    if name in _MNIST_FAMILY:
        return _without_tensorflow(name, _mnist_examples)(**options)
    return import_tfds().builder(name, **options)


def _without_tensorflow(name: str, examples: Callable[..., Any]) -> Any:
    """The stock builder with `examples(builder, downloads) -> {split: examples}`."""
    from tensorflow_datasets.core import registered

    base = _builder_class(name)
    with registered.skip_registration():

        class WithoutTensorFlow(base):
            def _split_generators(self, dl_manager):
                splits = examples(self, dl_manager)
                return {split: enumerate(each) for split, each in splits.items()}

    # Under the name and with the checksums of the stock builder.
    WithoutTensorFlow.name = base.name
    WithoutTensorFlow.url_infos = base.url_infos
    return WithoutTensorFlow


def _cifar_examples(builder: Any, downloads: Any) -> dict[str, Iterator[Any]]:
    from PIL import Image

    layout = cifar.LAYOUTS[builder.name]
    archive = pathlib.Path(downloads.download(builder._cifar_info.url))
    files = tuple(layout.label_files.values())
    texts = cifar.read_members(archive, files, folder=layout.folder)
    for key, file in layout.label_files.items():
        builder.info.features[key].names = texts[file].decode().split()

    def of_split(split):
        dataset, labels = cifar.read_archive(builder.name, archive, split)
        for position, image in enumerate(dataset.images):
            yield {
                "id": f"{split}_{position:05d}",
                "image": Image.fromarray(image),
                **dict(zip(layout.label_files, labels[position].tolist(), strict=True)),
            }

    return {split: of_split(split) for split in layout.files}


def _mnist_examples(builder: Any, downloads: Any) -> dict[str, Iterator[Any]]:
    from PIL import Image

    kinds = ("images-idx3", "labels-idx1")
    found = downloads.download(
        {
            split: [f"{builder.URL}{prefix}-{kind}-ubyte.gz" for kind in kinds]
            for split, prefix in idx.PREFIXES.items()
        }
    )

    def of_split(files):
        dataset = idx.read(idx.Pair(*map(pathlib.Path, files)), 10)
        for image, label in zip(*dataset, strict=True):
            yield {"image": Image.fromarray(image[..., 0]), "label": int(label)}

    return {split: of_split(files) for split, files in found.items()}


def _builder_class(name: str) -> Any:
    return import_tfds().builder_cls(re.split("[/:]", name)[0])


def _registered(name: str) -> str:
    """The name itself, if TFDS knows it."""
    known = import_tfds().list_builders(with_community_datasets=False)
    base = re.split("[/:]", name)[0]
    if base in known:
        return name
    close = difflib.get_close_matches(base, [*known, "digits"], n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "see its catalogue."
    raise DataUnavailableError(f"TFDS knows no set {base!r}: {hint}")
