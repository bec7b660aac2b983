"""The files that TFDS keeps its examples in, array_record and TFRecord, as bytes."""

import pathlib
import struct
from collections.abc import Iterator

from fuprune.data.dataset import DamagedDataError, DataUnavailableError
from fuprune.errors import first_line


def read_records(path: pathlib.Path) -> Iterator[bytes]:
    """The records of one shard, as bytes."""
    if not path.is_file():
        raise DamagedDataError(
            f"{path}: is missing, though dataset_info.json names it."
        )
    if ".array_record" in path.name:
        yield from _array_records(path)
    elif ".tfrecord" in path.name:
        yield from _tf_records(path)
    else:
        raise DataUnavailableError(
            f"{path}: is neither array_record nor TFRecord; prepare the set with "
            "file_format='array_record'."
        )


def _array_records(path: pathlib.Path) -> Iterator[bytes]:
    from array_record.python import array_record_module  # pyright: ignore

    try:
        reader = array_record_module.ArrayRecordReader(str(path))
        try:
            records = reader.read_all()
        finally:
            reader.close()
    except (RuntimeError, ValueError, OSError) as error:
        raise DamagedDataError(
            f"{path}: is not a whole array_record file ({first_line(error)})."
        ) from error
    yield from records


def _tf_records(path: pathlib.Path) -> Iterator[bytes]:
    """Length, its checksum, data, its checksum: TFRecord's framing.

    The checksum of the data is left alone: a pure Python CRC of every byte would
    take minutes, and PNG and JPEG streams have their own.
    """
    with open(path, "rb") as file:
        position = 0
        while head := file.read(12):
            if len(head) < 12 or _masked_crc32c(head[:8]) != head[8:]:
                raise DamagedDataError(
                    f"{path}: is not a TFRecord file at byte {position}."
                )
            (length,) = struct.unpack("<Q", head[:8])
            body = file.read(length + 4)
            if len(body) != length + 4:
                raise DamagedDataError(f"{path}: is cut off at byte {position}.")
            position += 12 + len(body)
            yield body[:-4]


def _masked_crc32c(data: bytes) -> bytes:
    """TFRecord's checksum, little endian."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    # Rotated and shifted by a constant, as the format asks for, because the checksum of
    # data that holds checksums is weak.
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            # The Castagnoli polynomial, bits reversed.
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()
