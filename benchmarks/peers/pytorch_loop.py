"""FedAvg as a plain PyTorch loop over clients, with all threads: the peer to pass."""

import protocol

channel = protocol.claim_output()

import pytorch_net  # noqa: E402
import torch  # noqa: E402
import workload  # noqa: E402


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--memory-format", default="channels_last")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    work = workload.of(options)
    memory_format = getattr(torch, options.memory_format)
    net = pytorch_net.create(work.net).to(memory_format=memory_format)
    clients = [
        pytorch_net.to_tensors(*workload.client_data(work, k))
        for k in range(work.clients)
    ]
    server = {name: value.clone() for name, value in net.state_dict().items()}
    floats = [name for name, value in server.items() if value.is_floating_point()]
    weight = 1.0 / work.clients

    def run_round():
        total = {name: torch.zeros_like(server[name]) for name in floats}
        for images, labels in clients:
            net.load_state_dict(server)
            pytorch_net.train_client(
                net,
                images,
                labels,
                batch_size=work.batch_size,
                memory_format=memory_format,
                dtype=getattr(torch, options.dtype),
            )
            trained = net.state_dict()
            for name in floats:
                total[name].add_(trained[name], alpha=weight)
        server.update(total)

    protocol.serve(
        channel,
        run_round,
        warm_up=options.warm_up,
        versions={"torch": torch.__version__},
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
