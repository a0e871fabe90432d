#!/bin/sh
# Makes what docker-compose.yml reads as secrets, each in a file of its own; a file that is there stays as it is.
#
# Containers read the files as users of their own, so the files are readable; the folder is not, to anybody but you.
set -eu
folder="${1:-$(dirname "$0")/secrets}"
umask 077
mkdir -p "$folder"
chmod 700 "$folder"

new() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
keep() { # NAME CONTENT
  [ -e "$folder/$1" ] || printf %s "$2" >"$folder/$1"
  chmod 444 "$folder/$1"
}
address() { printf 'postgresql://%s:%s@database:5432/secondread' "$1" "$(cat "$folder/$2")"; }

for name in key_ring secondread_metrics_token postgres_password owner_password service_password grafana_password bucket_secret_key; do
  keep "$name" "$(new)"
done
keep secondread_database_url "$(address secondread service_password)"
keep secondread_database_owner_url "$(address secondread_owner owner_password)"
