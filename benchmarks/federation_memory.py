"""Memory of a federation's server in one round, by the number of clients.

Clients are played by a grid that answers every request with an update of the model's
size; the server's part is the real one: requests made and sent, replies checked,
bounded and added up. Each point is a process of its own.

    python benchmarks/federation_memory.py              # a minute on an idle machine
    python benchmarks/federation_memory.py --values 75000 --clients 10 1000
"""

import argparse
import resource
import subprocess
import sys


def measure(values: int, clients: int) -> float:
    """Peak resident megabytes of a round with so many clients and parameters."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flwr.app import Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from fuprune.federated.client import ClientUpdate, TrainContext
    from fuprune.federated.program import Client, ClientProgram, Shared, Task
    from fuprune.federated.uploads import make_receive
    from fuprune.flower.records import Blob, pack, unpack
    from fuprune.flower.roster import Roster
    from fuprune.flower.settings import Timeouts
    from fuprune.flower.transport import RemoteClients
    from fuprune.models import zoo

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    one = np.float32(1)
    # The client's half costs the server nothing but what is in the message.
    update = Blob(
        ((), ClientUpdate({"w": np.ones(values, np.float32)}, {}, *[one] * 4))
    )

    class Grid:
        """Nodes that answer at once; a reply is made when it is asked for."""

        def __init__(self):
            self.asked = {}

        def get_node_ids(self):
            return range(clients)

        def push_messages(self, messages):
            for message in messages:
                name = str(len(self.asked))
                message.metadata.__dict__["_message_id"] = name
                header, tree = unpack(message.content)
                model = None if tree is None else Blob(tree).digest
                message.content = RecordDict()
                self.asked[name] = message, header["request"], model
            return [name]

        def pull_messages(self, names):
            for name in list(names):
                message, request, model = self.asked[name]
                said = {"request": request, "model": model, "problem": None}
                said |= {"client": message.metadata.dst_node_id, "examples": 9}
                said |= {"shape": [8, 8, 1], "orders": [], "closed": []}
                content = pack(said, None if model is None else update)
                yield Message(content, reply_to=message)

    roster = Roster(Grid(), clients, Timeouts(600, 60, 0.01), shape=(8, 8, 1))
    remote = RemoteClients(roster, {}, 10, [0.0], [1.0])
    model = zoo.create("resnet8", num_classes=10, input_shape=(8, 8, 1))

    def finish(shared, client, carry):
        zero = jnp.zeros(())
        params = shared.context.variables["params"]
        return (), ClientUpdate(params, {}, *[zero] * 4)

    task = Task("local_sgd", model, {"local_epochs": 1, "batch_size": 8})
    program = ClientProgram(lambda c: 0, lambda *x: (), lambda *x: (), finish, task)
    receive = make_receive(add_up=True, keep_updates=False)
    variables = {"params": {"w": jnp.zeros(values, jnp.float32)}}
    context = TrainContext(variables, jax.random.key(0), jnp.float32(1), None)
    shared = Shared(jnp.zeros((10, 8, 8, 1), jnp.uint8), jnp.arange(10), context)
    rows = np.tile(np.arange(10, dtype=np.int32), (clients, 1))
    cohort = Client(rows, np.full(clients, 10), np.arange(clients))
    total, _ = remote(program, receive)(shared, cohort)
    assert float(total.num_examples) == clients
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Prints a row per size of model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--values", type=int, nargs="+", default=[75_000, 15_000_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--one", action="store_true", help="this process is a point")
    given = parser.parse_args()
    if given.one:
        print(f"{measure(given.values[0], given.clients[0]):.0f}")
        return
    print("| MB each way | " + " | ".join(f"{n} clients" for n in given.clients) + " |")
    for values in given.values:
        found = []
        for clients in given.clients:
            flags = ["--one", "--values", str(values), "--clients", str(clients)]
            command = [sys.executable, __file__, *flags]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(f"{done.stdout.split()[-1]} MB")
        print(f"| {values * 4 / 1e6:.2f} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()
