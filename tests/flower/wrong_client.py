"""The ClientApp of a federation with a client that answers wrongly.

Client 2 answers its first training request as it should, and keeps what passed. Then it
sends that reply once more; then it trains the model of that first request under the
number of the one at hand; then it sends nonsense. All others answer as they should. A
test puts this file in the place of the app's own `client.py`.
"""

from pathlib import Path

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fuprune.flower import client_app
from fuprune.flower.records import pack, unpack

WRONG_CLIENT = 2


class WrongClientApp(ClientApp):
    """Ours, but for one client's training."""

    def __call__(self, message, context):
        """The reply of a client that may be the wrong one."""
        wrong = context.node_config["client-id"] == WRONG_CLIENT
        if not wrong or message.metadata.message_type != "train":
            return client_app.app(message, context)
        folder = Path(str(context.node_config["folder"]))
        number = len(list(folder.glob("answered-*")))
        (folder / f"answered-{number}").touch()
        return ANSWERS[min(number, len(ANSWERS) - 1)](message, context, folder)


def as_it_should(message, context, folder):
    reply = client_app.app(message, context)
    keep(folder / "request", message.content)
    keep(folder / "reply", reply.content)
    return reply


def another_rounds_reply(message, context, folder):
    return Message(recall(folder / "reply"), reply_to=message)


def an_old_model(message, context, folder):
    header, _ = unpack(message.content)
    _, model = unpack(recall(folder / "request"))
    message.content = pack(header, model)
    return client_app.app(message, context)


def nonsense(message, context, folder):
    header, (total, each) = unpack(client_app.app(message, context).content)
    each = jax.tree.map(lambda x: np.full_like(x, np.nan), each)
    return Message(pack(header, (total, each)), reply_to=message)


ANSWERS = (as_it_should, another_rounds_reply, an_old_model, nonsense)


def keep(path, content):
    path.mkdir()
    for name, array in content["message"].items():
        (path / name).write_bytes(array.data)


def recall(path):
    parts = {file.name: file.read_bytes() for file in path.iterdir()}
    arrays = {n: Array("uint8", (len(x),), "bytes", x) for n, x in parts.items()}
    return RecordDict({"message": ArrayRecord(arrays)})


app = WrongClientApp()
