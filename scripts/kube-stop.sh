#!/usr/bin/env bash
# Stop what kube-start.sh started in FOLDER. Usage: kube-stop.sh FOLDER
set -u
folder=${1:?usage: kube-stop.sh FOLDER}

stop() {
  local pid
  pid=$(cat "$folder/$1.pid" 2>/dev/null) || return 0
  rm -f "$folder/$1.pid"
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 40); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.25
  done
  kill -KILL "$pid" 2>/dev/null || true
}

stop apiserver # before etcd: without it the server hangs in its own shutdown
stop etcd
