#!/usr/bin/env bash
# Several processes of one run on this machine, meeting over loopback.
#
#   launch/local.sh 2 --config configs/quickstart.py --workdir runs/two
#
# The first argument is the number of processes; the rest goes to every process of
# `python -m fuprune.main`. SIGTERM and Ctrl-C reach all of them: the run saves and
# stops. If one dies, the others stop by themselves, and the same command continues.
#
# Environment:
#   DRY_RUN=1   print the commands and run nothing (also: --dry-run as first argument)
#   PYTHON      the interpreter (default: python3, or .venv/bin/python if there)
#   PORT        where the processes meet (default: a free one)
#   GRACE       seconds the others have to stop after one has died (default: 150;
#               more than runtime.heartbeat_seconds)
set -euo pipefail

fail() {
  echo "launch/local.sh: $1" >&2
  exit 2
}

if [[ ${1:-} == --dry-run ]]; then
  DRY_RUN=1
  shift
fi
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] ||
  fail "the first argument is '${1:-}', but must be the number of processes; as in: launch/local.sh 2 --workdir runs/two"
number=$1
shift

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=python3
  [[ -x $here/.venv/bin/python ]] && PYTHON=$here/.venv/bin/python
fi
[[ -n ${DRY_RUN:-} ]] || command -v "$PYTHON" > /dev/null || fail "there is no $PYTHON; set PYTHON."
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

if [[ -z ${PORT:-} ]]; then
  if [[ -n ${DRY_RUN:-} ]]; then
    PORT=12345
  else
    PORT=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  fi
fi

# Each process gets its own cores where there are enough: they would only fight.
allowed=()
if [[ -r /proc/self/status ]] && command -v taskset > /dev/null; then
  IFS=, read -ra ranges <<< "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
  for range in "${ranges[@]}"; do
    for ((core = ${range%-*}; core <= ${range#*-}; core++)); do allowed+=("$core"); done
  done
fi
share=$((${#allowed[@]} / number))

pids=()
for ((i = 0; i < number; i++)); do
  pin=()
  if ((number > 1 && share > 0)); then
    mine=$(IFS=, && echo "${allowed[*]:i*share:share}")
    pin=(taskset -c "$mine")
  fi
  command=("${pin[@]}" "$PYTHON" -m fuprune.main "$@"
    "--coordinator=127.0.0.1:$PORT" "--num_processes=$number" "--process_id=$i")
  if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "${command[@]}"
    echo
  elif ((i == 0)); then
    "${command[@]}" &
    pids+=($!)
  else
    "${command[@]}" > >(sed -u "s/^/[$i] /") 2> >(sed -u "s/^/[$i] /" >&2) &
    pids+=($!)
  fi
done
[[ -z ${DRY_RUN:-} ]] || exit 0

for ((i = 0; i < number; i++)); do
  echo "launch/local.sh: process $i has pid ${pids[i]}" >&2
done

pass_on() {
  kill -s "$1" "${pids[@]}" 2> /dev/null || true
}
trap 'pass_on TERM' TERM INT

running() {
  local left=0 pid
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2> /dev/null && left=$((left + 1))
  done
  echo "$left"
}

worst=0
deadline=0
codes=()
for ((i = 0; i < number; i++)); do codes+=(""); done
while true; do
  for ((i = 0; i < number; i++)); do
    if [[ -z ${codes[i]} ]] && ! kill -0 "${pids[i]}" 2> /dev/null; then
      code=0
      wait "${pids[i]}" || code=$?
      codes[i]=$code
      if ((code != 0 && worst == 0)); then
        worst=$code
        deadline=$((SECONDS + ${GRACE:-150}))
        echo "launch/local.sh: process $i ended with code $code; the others stop too, and the same command continues the run." >&2
      fi
    fi
  done
  (($(running) == 0)) && break
  if ((deadline > 0 && SECONDS > deadline)); then
    echo "launch/local.sh: the others did not stop within ${GRACE:-150} s; ending them." >&2
    pass_on KILL
    deadline=$((SECONDS + 60))
  fi
  sleep 0.2
done
exit "$worst"
