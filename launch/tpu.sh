#!/usr/bin/env bash
# One run on a Cloud TPU slice: the same command on every one of its hosts.
#
#   launch/tpu.sh my-slice us-central2-b setup
#   launch/tpu.sh my-slice us-central2-b run --config configs/cifar10_resnet.py:56 \
#     --workdir /mnt/shared/runs/a
#   launch/tpu.sh my-slice us-central2-b stop
#
# `setup` copies this checkout to every host and installs it with the TPU extra; `run`
# starts it in the background, its output in fuprune.log on each host; `follow` shows
# the first host's; `stop` sends SIGTERM: the run saves and stops, and the same `run`
# continues it, also after a preemption. The hosts find each other through the slice's
# metadata. With more than one host, --workdir must lie on a filesystem that all mount
# (Filestore, or a bucket by gcsfuse); a slice of one host needs nothing.
#
# Environment: GCLOUD (default gcloud), DRY_RUN=1 (print the commands, run nothing).
set -euo pipefail

fail() {
  echo "launch/tpu.sh: $1" >&2
  exit 2
}

[[ $# -ge 3 ]] || fail "give the slice's name, its zone and one of setup, run, follow, stop."
slice=$1 zone=$2 action=$3
shift 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
gcloud=${GCLOUD:-gcloud}
[[ -n ${DRY_RUN:-} ]] || command -v "$gcloud" > /dev/null || fail "there is no $gcloud; install the Google Cloud SDK, or try DRY_RUN=1."

perform() {
  if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

on() {
  local workers=$1
  shift
  perform "$gcloud" compute tpus tpu-vm ssh "$slice" "--zone=$zone" "--worker=$workers" "--command=$1"
}

case $action in
  setup)
    archive=$(mktemp -u --suffix=.tar.gz)
    perform git -C "$here" archive --format=tar.gz "--output=$archive" HEAD
    perform "$gcloud" compute tpus tpu-vm scp "$archive" "$slice:fuprune.tar.gz" "--zone=$zone" --worker=all
    perform rm -f "$archive"
    on all "mkdir -p fuprune && tar -xzf fuprune.tar.gz -C fuprune && python3 -m pip install --quiet -e './fuprune[tpu]'"
    ;;
  run)
    [[ " $* " == *" --workdir"* ]] || fail "give a --workdir; with several hosts, on a filesystem that all mount."
    on all "cd fuprune || exit 1; nohup python3 -m fuprune.main $(printf '%q ' "$@")> ../fuprune.log 2>&1 & echo \$! > ../fuprune.pid"
    ;;
  follow)
    on 0 "tail -f fuprune.log"
    ;;
  stop)
    on all "kill -TERM \$(cat fuprune.pid)"
    ;;
  *)
    fail "the action is '$action'; allowed: setup, run, follow, stop."
    ;;
esac
