"""A real federation on Flower: the functions of the simulator, clients elsewhere.

A run's steps, doors, aggregation, scores, plans and surgery are those of a simulation:
a `RemoteClients` is one more backend of `for_each_client`, which sends a program's
description, its arrays and the network's spec to Flower's nodes in place of running it
here. Nothing of the transport is ours, and messages are arrays and JSON, never code.
"""
