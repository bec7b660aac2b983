#!/usr/bin/env bash
# Makes one virtual environment per peer under .bench/, from the `python` on PATH.
# An environment that is already complete is left alone; delete .bench/ to start over.
# Usage: benchmarks/setup.sh [pytorch] [fedjax]   (default: both)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

make_environment() {
  local name=$1 folder=.bench/$1
  shift
  if [[ -e $folder/.complete ]]; then
    echo "$folder is there"
    return
  fi
  echo "making $folder"
  rm -rf "$folder"
  python -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet "$@"
  touch "$folder/.complete"
}

mkdir -p .bench
for peer in "${@:-pytorch fedjax}"; do
  # The default arrives as one word.
  for name in $peer; do
    case $name in
      # Flower's simulation wants protobuf < 7, which is why it cannot live beside us.
      pytorch)
        make_environment pytorch "torch==2.13.0" "flwr[simulation]" "protobuf<7" \
          "jax==0.10.2" "flax>=0.12.8" "optax>=0.2.8"
        ;;
      fedjax)
        make_environment fedjax "fedjax==0.0.17" "jax==0.10.2"
        ;;
      *)
        echo "peer $name is unknown; choose from pytorch fedjax" >&2
        exit 2
        ;;
    esac
  done
done
