"""FedAvg by Flower's simulation engine, with a PyTorch or a JAX client.

Flower runs all rounds of an experiment in one call. Its strategy here waits for the
benchmark before it configures a round, and answers once it has aggregated one.
"""

import protocol

channel = protocol.claim_output()

import importlib.metadata  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402

import flower_clients  # noqa: E402
import pytorch_net  # noqa: E402
import workload  # noqa: E402
from flwr.app import ArrayRecord  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402


class OnRequest(FedAvg):
    """Federated averaging, a round at a time, with a stopwatch."""

    def __init__(self, work, warm_up: int, facts: dict):
        super().__init__(fraction_evaluate=0.0, min_available_nodes=work.clients)
        self.work, self.warm_up, self.facts = work, warm_up, facts
        self.requests = protocol.requests()
        self.first: list[float] = []

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == self.warm_up + 1:
            facts = {"warm_up_seconds": self.first, **self.facts}
            print(json.dumps(facts), file=channel)
        if server_round > self.warm_up and next(self.requests, "end") == "end":
            raise KeyboardInterrupt
        self.start = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) != self.work.clients:
            print("clients failed", [reply.error for reply in failed])
            os._exit(1)
        seconds = time.perf_counter() - self.start
        if server_round <= self.warm_up:
            self.first.append(seconds)
        else:
            print(json.dumps({"seconds": seconds}), file=channel)
        return result


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--framework", choices=["pytorch", "jax"], default="pytorch")
    options = parser.parse_args()
    work = workload.of(options)
    framework = options.framework
    packages = ["flwr", "ray", {"pytorch": "torch", "jax": "jax"}[framework]]
    versions = {name: importlib.metadata.version(name) for name in packages}

    client_app = ClientApp()

    @client_app.train()
    def train(message, context):
        client = int(context.node_config["partition-id"])
        return flower_clients.train(message, client, work, framework)

    server_app = ServerApp()

    @server_app.main()
    def serve(grid, context):
        del context
        if framework == "pytorch":
            arrays = ArrayRecord(pytorch_net.create(work.net).state_dict())
        else:
            arrays = flower_clients.jax_record(flower_clients.jax_model(work)[1])
        strategy = OnRequest(work, options.warm_up, {"versions": versions})
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1_000_000)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
