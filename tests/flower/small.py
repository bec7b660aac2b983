"""A federation in one process: the real ClientApp behind a grid without a network."""

import jax
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import save

from fuprune import config as configuration
from fuprune.data.normalisation import constant_statistics
from fuprune.flower import client_app
from fuprune.flower.launch import deal
from fuprune.flower.records import pack, unpack
from fuprune.flower.roster import Roster
from fuprune.flower.settings import Timeouts, read_config
from fuprune.flower.transport import RemoteClients, stand_ins
from fuprune.models import zoo
from fuprune.run import build
from fuprune.run.data import load_data
from fuprune.run.machine import Runtime

CONFIG = (
    "data.limit=4 data.validation=0 partition.clients=3 partition.kind=iid "
    "train.cohort=3 train.batch_size=8 train.local_epochs=1 train.rounds=2"
)


SHAPE = (8, 8, 1)


class FakeGrid:
    """Hands messages to the ClientApp; `meddle(client, reply) -> reply` may change one.

    Everything that passes is kept in `seen`.
    """

    def __init__(self, folder, config=CONFIG, clients=3, meddle=None):
        self.nodes = {100 + k: k for k in range(clients)}
        self.folder, self.meddle = folder, meddle
        self.keys = {}  # by node
        folder.mkdir(exist_ok=True)
        if not (folder / "data-0.npz").exists():
            deal(config, folder)
        self.seen, self._replies, self._number = [], {}, 0
        # Flower sets these in the processes that it starts.
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self.dead = set()

    def get_node_ids(self):
        return [n for n in self.nodes if n not in self.dead]

    def push_messages(self, messages):
        """A message that nobody answers has no name, so that nobody waits for it."""
        names = []
        for message in messages:
            self._number += 1
            name = str(self._number)
            message.metadata.__dict__["_message_id"] = name  # as Flower does
            reply = self._deliver(message)
            if reply is not None:
                self.seen.append((message, reply))
                self._replies[name] = reply
            names.append(None if reply is None else name)
        return names

    def pull_messages(self, message_ids):
        return [self._replies.pop(name) for name in message_ids]

    def _deliver(self, message):
        node = message.metadata.dst_node_id
        if node in self.dead:
            return None
        client, has_key = self.nodes[node], node in self.keys
        context = Context(
            run_id=1,
            node_id=node,
            node_config={
                "client-id": client,
                "folder": str(self.folder / str(client)),
                "data": f"npz:{self.folder}/data-{client}.npz",
                "key": str(self.folder / "keys" / self.keys.get(node, "")) * has_key,
            },
            state=RecordDict(),
            run_config={},
        )
        reply = client_app.app(message, context)
        return reply if self.meddle is None else self.meddle(client, message, reply)


def meddling(kind, change, client=1):
    """For `meddle`: one client's replies of a kind are changed, or None: it is mute."""

    def meddle(sender, message, reply):
        if sender != client or message.metadata.message_type != kind:
            return reply
        if change is None:
            return None
        return Message(pack(*change(*unpack(reply.content))), reply_to=message)

    return meddle


def said(header, tree=None):
    """A message of these bytes; without a tree, of one that is None."""
    tree = save({}, {"form": "null"}) if tree is None else tree
    parts = {"header": header, "tree": tree}
    arrays = {n: Array("uint8", (len(x),), "bytes", x) for n, x in parts.items()}
    return RecordDict({"message": ArrayRecord(arrays)})


def federation(config):
    """What the simulator has: the same parts as the nodes take."""
    return load_data(config, Runtime(backend="loop"))


def remote(grid, config, *, num_clients=3, **terms):
    """The clients behind a grid, greeted, and the server's stand-in for their data."""
    roster = Roster(grid, num_clients, Timeouts(60, 5, 0.01), shape=SHAPE)
    present = roster.wait_for(len(grid.get_node_ids()))
    assert present == sorted(grid.nodes.values())
    mean, std = constant_statistics("digits", 1)
    told = configuration.to_json(config)
    clients = RemoteClients(roster, told, 10, mean, std, **terms)
    return clients, stand_ins(num_clients, 10, SHAPE)


def small_model():
    return zoo.create("resnet8", num_classes=10, input_shape=SHAPE)


def make_setting(text=CONFIG):
    """A config, its federation, a small network and variables of it."""
    config, model = read_config(text), small_model()
    variables = build.initial_variables(model, jax.random.key(1))
    return config, federation(config), model, variables
