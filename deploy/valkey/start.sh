#!/bin/sh
# Starts a server of the store. The passwords of the environment go, hashed, into its access rules, which are made again
# at each start; so neither they nor their hashes stand on a command line or in a volume.
set -eu
conf=${STORE_CONF:-/etc/opic}
run=${STORE_RUN:-/run/opic}
: "${STORE_PASSWORD:?}" "${STORE_ADMIN_PASSWORD:?}"

hashed() { printf '%s' "$1" | sha256sum | cut -d ' ' -f 1; }

umask 077
sed -e '/^#/d' \
    -e "s/{STORE_PASSWORD}/$(hashed "$STORE_PASSWORD")/" \
    -e "s/{STORE_ADMIN_PASSWORD}/$(hashed "$STORE_ADMIN_PASSWORD")/" \
    "$conf/users.acl" > "$run/users.acl"
unset STORE_PASSWORD
exec "${STORE_SERVER:-valkey-server}" "$conf/redis.conf" --aclfile "$run/users.acl" "$@"
