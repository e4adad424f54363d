#!/usr/bin/env bash
# Install, by apt-get, what the tests start: the programs that a Python environment cannot bring.
# usage: install-system.sh [GROUP..]     groups: core slurm ibsim node-exporter kubernetes; default: all
# Silent and quick where everything is there. Exit 0 ok, 2 when something needed cannot be installed here.
# With no argument only `core` is needed: the other groups are installed where apt knows them.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin:/usr/local/go/bin
ALL=(core slurm ibsim node-exporter kubernetes)
say() { echo "install-system: $1" >&2; }

java_17() {
  local version
  version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p') && [ "${version:-0}" -ge 17 ]
}
has() { local program; for program; do command -v "$program" >/dev/null || return 1; done; }
known() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }
first_known() { local name; for name; do known "$name" && { echo "$name"; return; }; done; echo "${!#}"; }

present() {  # is what group $1 brings there already?
  case $1 in
    core) java_17 && has mvn prometheus-alertmanager amtool ;;
    slurm) has slurmctld slurmd squeue munged ;;
    ibsim) has ibsim opensm ibnetdiscover ;;
    node-exporter) has prometheus-node-exporter ;;
    kubernetes) has etcd openssl curl ;;  # Go itself: newer than distributions carry, see the tests
  esac
}
packages() {  # one package a line for group $1; names differ between releases
  case $1 in
    core)
      java_17 || first_known openjdk-21-jre-headless openjdk-17-jre-headless default-jre-headless
      has mvn || echo maven
      has prometheus-alertmanager amtool || echo prometheus-alertmanager ;;
    slurm) printf '%s\n' slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins ;;
    ibsim) printf '%s\n' ibsim-utils opensm infiniband-diags ;;
    node-exporter) echo prometheus-node-exporter ;;
    kubernetes) printf '%s\n' "$(first_known etcd-server etcd)" openssl curl ;;
  esac
}

needed=("$@")
[ $# -gt 0 ] || needed=(core)
wanted=("$@")
[ $# -gt 0 ] || wanted=("${ALL[@]}")
missing=()
for group in "${wanted[@]}"; do
  [[ " ${ALL[*]} " == *" $group "* ]] || { say "unknown group '$group'; groups are: ${ALL[*]}"; exit 2; }
  present "$group" || missing+=("$group")
done
[ ${#missing[@]} -gt 0 ] || exit 0

is_needed() { [[ " ${needed[*]} " == *" $1 "* ]]; }
finish() {  # say what is still missing; 2 when one of it is needed
  local group code=0
  for group in "${missing[@]}"; do
    present "$group" && continue
    say "'$group' is missing: install $(packages "$group" | paste -sd ' ')"
    is_needed "$group" && code=2
  done
  exit $code
}
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then sudo=(sudo); else
    say "needs root or sudo to install packages"
    finish
  fi
fi
command -v apt-get >/dev/null || { say "apt-get is not here; use this system's own package manager"; finish; }

# Nothing that is installed here may start a service: a policy of "no" for the time of the installation.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
  "${sudo[@]}" chmod 755 $policy
  trap '"${sudo[@]}" rm -f $policy' EXIT
fi
apt() {  # quiet when it works, everything it said when not
  local said
  said=$("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" 2>&1) ||
    { echo "$said" >&2; return 1; }
}
apt update || say "apt-get update failed, going on with the lists that are here"
for group in "${missing[@]}"; do  # one by one, so that one that fails takes no other with it
  names=() unknown=()
  while read -r name; do
    if known "$name"; then names+=("$name"); else unknown+=("$name"); fi
  done < <(packages "$group")
  if [ ${#unknown[@]} -gt 0 ]; then say "apt does not know ${unknown[*]}, leaving '$group' out"; continue; fi
  say "installing '$group': ${names[*]}"
  apt install -y --no-install-recommends "${names[@]}" || say "apt-get could not install '$group'"
done
finish
