"""The machine's float32 matrix product, as rounds of as many FLOPs as training takes.

A round is split over products of 2048-square matrices; it is the time that training
would take if every FLOP of the network ran at the pace of the best-tuned kernel.
"""

import protocol

channel = protocol.claim_output()

import time  # noqa: E402

import torch  # noqa: E402
import workload  # noqa: E402

SIDE = 2048
PRODUCTS = 20


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--flops", type=float, required=True, help="of one image")
    options = parser.parse_args()
    work = workload.of(options)
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    products = options.flops * work.images_per_round / (2 * SIDE**3)

    def measure():
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=out)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        scale = products / PRODUCTS
        return {"seconds": seconds * scale, "cpu_seconds": busy * scale}

    measure()
    facts = {"versions": {"torch": torch.__version__}, "warm_up_seconds": []}
    print(protocol.json.dumps(facts), file=channel)
    for _ in protocol.requests():
        print(protocol.json.dumps(measure()), file=channel)


if __name__ == "__main__":
    main()
