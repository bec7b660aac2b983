"""Downloading and preparing TFDS sets without TensorFlow.

The CIFAR and MNIST families are prepared by subclasses of TFDS's own builders that do
the few steps for which the stock ones call TensorFlow; the result is a directory that
TFDS reads as its own. Other sets are left to their stock builders, which may ask for
TensorFlow.
"""

import difflib
import pathlib
import re
from collections.abc import Iterator
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
        return _cifar_builder(name)(**options)
    if name in _MNIST_FAMILY:
        return _mnist_builder(name)(**options)
    return import_tfds().builder(name, **options)


def _cifar_builder(name: str) -> Any:
    from tensorflow_datasets.core import registered

    layout = cifar.LAYOUTS[name]
    base = _builder_class(name)
    with registered.skip_registration():

        class WithoutTensorFlow(base):
            def _split_generators(self, dl_manager):
                url = self._cifar_info.url
                archive = pathlib.Path(dl_manager.download(url))
                files = tuple(layout.label_files.values())
                texts = cifar.read_members(archive, files, folder=layout.folder)
                for key, file in layout.label_files.items():
                    self.info.features[key].names = texts[file].decode().split()
                return {
                    split: _cifar_examples(name, archive, split)
                    for split in layout.files
                }

    return _renamed(WithoutTensorFlow, base)


def _cifar_examples(
    name: str, archive: pathlib.Path, split: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    from PIL import Image

    layout = cifar.LAYOUTS[name]
    members = cifar.read_members(archive, layout.files[split], folder=layout.folder)
    position = 0
    for file, blob in members.items():
        origin = f"{archive} ({file})"
        dataset, labels = cifar.parse_records(blob, name, file, origin)
        for image, row in zip(dataset.images, labels, strict=True):
            example: dict[str, Any] = {
                "id": f"{split}_{position:05d}",
                "image": Image.fromarray(image),
            }
            for key, label in zip(layout.label_files, row, strict=True):
                example[key] = int(label)
            yield position, example
            position += 1


def _mnist_builder(name: str) -> Any:
    from PIL import Image
    from tensorflow_datasets.core import registered

    base = _builder_class(name)
    with registered.skip_registration():

        class WithoutTensorFlow(base):
            def _split_generators(self, dl_manager):
                urls = {
                    split: {
                        "images": f"{self.URL}{prefix}-images-idx3-ubyte.gz",
                        "labels": f"{self.URL}{prefix}-labels-idx1-ubyte.gz",
                    }
                    for split, prefix in idx.PREFIXES.items()
                }
                found = dl_manager.download(urls)
                return {split: self._examples(files) for split, files in found.items()}

            def _examples(self, files):
                paths = {part: pathlib.Path(file) for part, file in files.items()}
                dataset = idx.read(idx.Pair(**paths), 10)
                for position, (image, label) in enumerate(zip(*dataset, strict=True)):
                    picture = Image.fromarray(image[..., 0])
                    yield position, {"image": picture, "label": int(label)}

    return _renamed(WithoutTensorFlow, base)


def _renamed(subclass: Any, base: Any) -> Any:
    """The subclass under the name and with the checksums of the stock builder."""
    subclass.name = base.name
    subclass.url_infos = base.url_infos
    return subclass


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
