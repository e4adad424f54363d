#!/usr/bin/env bash
# Stop the broker that kafka-start.sh started in DIR; nothing to stop is fine. Its data stays.
# usage: kafka-stop.sh DIR
set -euo pipefail
dir=${1:?usage: kafka-stop.sh DIR}
pid=$(cat "$dir/pid" 2>/dev/null) || exit 0
dir=$(cd "$dir" && pwd)
ours() {  # never signal a process that merely inherited the number
  [[ $pid =~ ^[0-9]+$ ]] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "kafka.Kafka $dir/server.properties"
}
if ours; then
  kill "$pid"
  for _ in $(seq 80); do ours || break; sleep 0.25; done
  if ours; then
    echo "kafka-stop: no clean end within 20 s, killing process $pid" >&2
    kill -9 "$pid"
  fi
fi
rm -f "$dir/pid"
