#!/bin/sh
# Prepares a Debian machine for the units beside this file: user, directories, passwords, program, units. Run it as root,
# in a checkout. Run again, it renews the program and the units and keeps passwords and data. It starts nothing.
#
#   sh deploy/systemd/set-up.sh          on this machine
#   sh deploy/systemd/set-up.sh DIR      the files alone, below DIR: to look at them first
set -eu
here=$(dirname "$0")
root=${1:-}

if [ -z "$root" ]; then
  id opic > /dev/null 2>&1 || useradd --system --home-dir /var/lib/opic --shell /usr/sbin/nologin opic
  own="--owner=opic --group=opic"
else
  own=
fi
# shellcheck disable=SC2086 - no word, or two
install --directory $own --mode=750 "$root/etc/opic" "$root/var/lib/opic" "$root/var/lib/opic/store" \
  "$root/var/lib/opic/kafka" "$root/var/lib/opic/endpoint"
install --directory "$root/etc/systemd/system" "$root/opt"
for file in redis.conf users.acl valkey/start.sh systemd/kafka.properties; do
  # shellcheck disable=SC2086
  install $own --mode=640 "$here/../$file" "$root/etc/opic/"
done
install --mode=644 "$here"/*.service "$root/etc/systemd/system/"

# The passwords are in files that only root and systemd read: no shell has to know them at a restart.
umask 077
if [ ! -e "$root/etc/opic/store.env" ]; then
  password=$(openssl rand -hex 24)
  printf 'STORE_PASSWORD=%s\nSTORE_ADMIN_PASSWORD=%s\n' "$password" "$(openssl rand -hex 24)" > "$root/etc/opic/store.env"
  cat > "$root/etc/opic/opic.env" << END
OPIC_STORE=redis://opic:$password@127.0.0.1:6379
OPIC_KAFKA_BOOTSTRAP=127.0.0.1:9092
OPIC_DURABILITY=fsync
OPIC_API_TOKEN=$(openssl rand -hex 24)
END
fi

if [ -z "$root" ]; then
  python3 -m venv /opt/opic
  /opt/opic/bin/pip install --quiet "$here/../..[kafka]"
  chmod -R go+rX /opt/opic
  systemctl daemon-reload
fi
echo "prepared; the passwords and the token are in $root/etc/opic/store.env and opic.env"
