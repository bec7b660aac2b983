"""Contents for files that would run code, were they ever more than data."""

import io
import os
import pickle
import struct

import numpy as np


class Payload:
    """Leaves a directory behind when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def npy_of(value):
    buffer = io.BytesIO()
    np.save(buffer, np.array([value], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npy_header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def crafted_arrays(trace):
    yield "pickle", pickle.dumps(Payload(trace))
    yield "object array", npy_of(Payload(trace))
    yield "code as header", npy_header(b"__import__('os').system('touch x')\n")
    yield (
        "call in header",
        npy_header(
            b"{'descr': open('x', 'w'), 'fortran_order': False, 'shape': (1,)}\n"
        ),
    )
    yield (
        "huge shape",
        npy_header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (1<<60,)}\n"),
    )
    yield (
        "vast shape",
        npy_header(
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d)}\n"
            % (2**62, 2**62)
        ),
    )
    yield "deep header", npy_header(b"(" * 5000 + b"\n")
    yield "empty", b""


DEEP = "[" * 100_000 + "]" * 100_000
CRAFTED_JSON = {
    "empty": "",
    "null": "null",
    "list": "[]",
    "text": "\"__import__('os')\"",
    "nan": "NaN",
    "infinity": '{"offset": Infinity, "outcome": {}}',
    "huge number": '{"offset": ' + "9" * 5000 + ', "outcome": {}}',
    "pickled": "cos\nsystem\n(S'true'\ntR.",
    "yaml": "!!python/object/apply:os.system ['true']",
    "wrong types": '{"offset": [], "outcome": 3, "config": 1, "format": {}}',
    "half": '{"offset": 1, "outcome": {',
    "very deep": DEEP,
}
