"""Clients that misbehave."""

from fuprune.federated.client import ClientUpdate
from fuprune.federated.cohort import for_each_client


def faulty(fault, backend="map"):
    """A backend whose clients send `fault(update, client id)` in place of an update."""

    def run(program, receive=None):
        def finish(shared, client, carry):
            total, sent = program.finish(shared, client, carry)
            if isinstance(sent, ClientUpdate):
                sent = fault(sent, client.client_id)
            return total, sent

        spoiled = program._replace(finish=finish)
        return for_each_client(spoiled, receive=receive, backend=backend)

    return run
