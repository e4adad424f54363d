#!/usr/bin/env bash
# Start one Apache Kafka broker (KRaft) on 127.0.0.1 for development and tests; a running one is left alone.
# usage: kafka-start.sh DIR [PORT [CONTROLLER_PORT]]     prints the broker's address when it answers
# DIR holds configuration, data, log and pid. Jars are fetched once by Maven into .kafka/libs of the
# repository (KAFKA_LIBS overrides). KAFKA_HEAP_OPTS overrides -Xms256m -Xmx512m.
set -euo pipefail
usage="usage: kafka-start.sh DIR [PORT [CONTROLLER_PORT]]"
dir=${1:?$usage} port=${2:-9092}
controller_port=${3:-$((port + 1))}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libs=${KAFKA_LIBS:-$here/../.kafka/libs}
read -ra heap <<<"${KAFKA_HEAP_OPTS:--Xms256m -Xmx512m}"
mkdir -p "$dir" "$(dirname "$libs")"
dir=$(cd "$dir" && pwd)

die() { echo "kafka-start: $1" >&2; exit "${2:-1}"; }
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
ours() {  # is process $1 the broker of DIR? A pid in an old file may belong to another program by now.
  [[ $1 =~ ^[0-9]+$ ]] && tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "kafka.Kafka $dir/server.properties"
}
wait_for_answer() {  # $1 pid, $2 port; false when the process ends first
  for _ in $(seq 240); do
    ours "$1" || return 1
    answers "$2" && return
    sleep 0.5
  done
  die "no answer on port $2 within 120 s; see $dir/broker.log"
}

exec 9>"$dir/lock"
flock 9  # two callers of one DIR: the second finds the first one's broker
if pid=$(cat "$dir/pid" 2>/dev/null) && ours "$pid"; then
  running_port=$(sed -n 's/^listeners=PLAINTEXT:.*127\.0\.0\.1:\([0-9]*\),.*/\1/p' "$dir/server.properties")
  if wait_for_answer "$pid" "$running_port"; then
    echo "already running (pid $pid)" >&2
    echo "127.0.0.1:$running_port"
    exit
  fi
fi
need() { command -v "$1" >/dev/null || die "$1 is missing; run scripts/install-system.sh core" 2; }
need java
for taken in "$port" "$controller_port"; do
  ! answers "$taken" || die "port $taken is taken by another program; give another: $usage" 2
done

fetch_jars() {
  need mvn
  rm -rf "$libs.part"
  echo "fetching Kafka's jars (45 MB, once)" >&2
  local said
  said=$(mvn -q -B -ntp -f "$here/kafka/pom.xml" dependency:copy-dependencies -DoutputDirectory="$libs.part" 2>&1) ||
    { echo "$said" >&2; die "Maven could not fetch Kafka's jars"; }
  cp "$here/kafka/pom.xml" "$libs.part/fetched-by.xml"
  rm -rf "$libs"
  mv "$libs.part" "$libs"  # whole or not at all: a broken download is not taken for a broker
}
exec 8>"$libs.lock"
flock 8
cmp -s "$here/kafka/pom.xml" "$libs/fetched-by.xml" || fetch_jars
flock -u 8
libs=$(cd "$libs" && pwd)

cat >"$dir/server.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$dir/data
# Topics are made by \`stethoscope topics create\`, with the right partition counts, or not at all.
auto.create.topics.enable=false
# One broker: nothing to replicate to, nobody to wait for.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
P
if [ ! -f "$dir/data/meta.properties" ]; then
  cluster_id=A$(head -c 16 /dev/urandom | base64 | tr '+/' 'AA' | cut -c1-20)A  # 22 base64 digits, no leading dash
  java "${heap[@]}" -XX:TieredStopAtLevel=1 -cp "$libs/*" kafka.tools.StorageTool \
    format -t "$cluster_id" -c "$dir/server.properties" >"$dir/format.log" 2>&1 ||
    { cat "$dir/format.log" >&2; die "cannot format $dir/data"; }
fi
setsid java "${heap[@]}" -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true \
  -cp "$libs/*" kafka.Kafka "$dir/server.properties" >"$dir/broker.log" 2>&1 </dev/null 8>&- 9>&- &
echo $! >"$dir/pid"
for _ in $(seq 40); do ours $! && break; sleep 0.05; done  # until setsid has become java
wait_for_answer $! "$port" || { tail -n 20 "$dir/broker.log" >&2; die "the broker ended before it answered"; }
echo "127.0.0.1:$port"
