#!/bin/sh
# Makes what docker-compose.yml reads as secrets, each in a file of its own; a file that is there stays as it is.
# Needs openssl, for the certificate by which the service knows the database.
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
tls='sslmode=verify-full&sslrootcert=/run/secrets/database_certificate'
address() { printf 'postgresql://%s:%s@database:5432/secondread?%s' "$1" "$(cat "$folder/$2")" "$tls"; }

for name in key_ring secondread_metrics_token postgres_password owner_password service_password grafana_password bucket_secret_key; do
  keep "$name" "$(new)"
done
if ! [ -e "$folder/database_certificate" ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=database \
    -addext subjectAltName=DNS:database -keyout "$folder/database_key" -out "$folder/database_certificate" 2>/dev/null
  chmod 444 "$folder/database_key" "$folder/database_certificate"
fi
keep secondread_database_url "$(address secondread service_password)"
keep secondread_database_owner_url "$(address secondread_owner owner_password)"
