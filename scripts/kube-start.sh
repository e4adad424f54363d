#!/usr/bin/env bash
# Start a Kubernetes API server and etcd on loopback, for tests: no kubelet, no scheduler, no controllers, so that a test
# itself sets spec.nodeName and patches status. Usage: kube-start.sh FOLDER [PORT]; uses PORT to PORT+2.
# Prints the URL. Tokens: FOLDER/admin.token may do everything, FOLDER/nobody.token nothing. Needs Go, etcd, openssl.
set -euo pipefail
folder=${1:?usage: kube-start.sh FOLDER [PORT]} port=${2:-16443}
here=$(cd "$(dirname "$0")" && pwd)
for tool in etcd openssl curl; do
  command -v $tool >/dev/null || { echo "$tool is missing (Debian: etcd-server, openssl, curl)" >&2; exit 2; }
done
program=$("$here/kube-build.sh")
mkdir -p "$folder" && folder=$(cd "$folder" && pwd)

umask 077
[ -f "$folder/accounts.key" ] || openssl genrsa -out "$folder/accounts.key" 2048 2>/dev/null
for user in admin nobody; do
  [ -f "$folder/$user.token" ] || openssl rand -hex 16 | tr -d '\n' >"$folder/$user.token"
done
cat >"$folder/tokens.csv" <<CSV
$(cat "$folder/admin.token"),admin,1,system:masters
$(cat "$folder/nobody.token"),nobody,2
CSV

store=http://127.0.0.1:$((port + 1)) peer=http://127.0.0.1:$((port + 2))
setsid etcd --data-dir "$folder/etcd" --unsafe-no-fsync --listen-client-urls "$store" --advertise-client-urls "$store" \
  --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
  >"$folder/etcd.log" 2>&1 </dev/null &
echo $! >"$folder/etcd.pid"
setsid "$program" --etcd-servers="$store" --bind-address=127.0.0.1 --secure-port="$port" --cert-dir="$folder/certs" \
  --token-auth-file="$folder/tokens.csv" --authorization-mode=RBAC --service-cluster-ip-range=10.0.0.0/24 \
  --service-account-issuer=https://stethoscope.test --service-account-key-file="$folder/accounts.key" \
  --service-account-signing-key-file="$folder/accounts.key" --disable-admission-plugins=ServiceAccount \
  --etcd-compaction-interval=0 >"$folder/apiserver.log" 2>&1 </dev/null &
echo $! >"$folder/apiserver.pid"

for _ in $(seq 240); do
  if curl -sf --cacert "$folder/certs/apiserver.crt" -H "Authorization: Bearer $(cat "$folder/admin.token")" \
    "https://127.0.0.1:$port/readyz" >/dev/null 2>&1; then
    echo "https://127.0.0.1:$port"
    exit 0
  fi
  kill -0 "$(cat "$folder/apiserver.pid")" 2>/dev/null || break
  sleep 0.5
done
tail -n 20 "$folder/apiserver.log" >&2
"$here/kube-stop.sh" "$folder"
echo "the API server did not become ready; its log is $folder/apiserver.log" >&2
exit 1
