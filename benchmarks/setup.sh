#!/usr/bin/env bash
# Makes the peers' virtual environment, .bench/pytorch, from the `python` on PATH.
# One that is already complete is left alone; delete .bench/ to start over.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=.bench/pytorch
if [[ -e $folder/.complete ]]; then
  echo "$folder is there"
  exit
fi
rm -rf "$folder"
python -m venv "$folder"
# Flower's simulation wants protobuf < 7, which is why it cannot live beside us.
"$folder/bin/python" -m pip install --quiet "torch==2.13.0" "flwr[simulation]" \
  "protobuf<7" "jax==0.10.2" "flax>=0.12.8" "optax>=0.2.8"
touch "$folder/.complete"
