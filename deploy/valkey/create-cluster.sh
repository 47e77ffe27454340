#!/bin/sh
# Makes one cluster of the servers named as HOST:PORT, unless they are one already; returns once each of them says that
# all slots are served. May be run again at any time: a cluster that is there is left as it is.
set -eu
export REDISCLI_AUTH="${STORE_ADMIN_PASSWORD:?}"
ask() { # HOST:PORT command…
  node=$1; shift
  "${STORE_CLI:-valkey-cli}" --user admin -h "${node%:*}" -p "${node##*:}" "$@"
}

if ask "$1" CLUSTER INFO | grep -q '^cluster_slots_assigned:0'; then
  ask "$1" --cluster create "$@" --cluster-replicas 0 --cluster-yes
fi
for node in "$@"; do
  tries=60
  until ask "$node" CLUSTER INFO | grep -q '^cluster_state:ok'; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { echo "$node: the cluster is not ok:"; ask "$node" CLUSTER NODES; exit 1; }
    sleep 1
  done
done
ask "$1" CLUSTER NODES
