#!/bin/sh
# Make what the processes of compose.yml prove themselves with: an authority, a security directory for each process, and
# passwords. Run it again to renew certificates and to give out new rules (access.toml); passwords stay what they are.
#
#   make.sh AUTHORITY SECURITY RULES
#
# Each process is given its own directory below SECURITY and sees no other. Images that run as a user of their own read
# it by group: nothing secret is readable for others.
set -eu
umask 027

authority=$1 security=$2 rules=$3

# issue NAME ROLE HOST...: the security directory of one process.
issue() {
    name=$1 role=$2
    shift 2
    for host in "$@"; do
        set -- "$@" --host "$host"
        shift
    done
    tallybook security issue "$authority" "$security/$name" --role "$role" --name "$name" "$@" >/dev/null
    open_to_group "$security/$name"
}

open_to_group() {
    chmod -R u=rwX,g=rX,o= "$1"
}

# secret FILE: a random password, the first time.
secret() {
    [ -s "$1" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$1"
}

[ -e "$authority/ca.key" ] || tallybook security init "$authority" >/dev/null
cp "$rules" "$authority/access.toml"

# Who opens the metadata shares one password for them, which ZooKeeper asks for beside the certificate.
secret "$authority/zookeeper"
for name in bookie-1 bookie-2 bookie-3 bookie-4 gateway console offloader repair; do
    issue "$name" bookie "$name" localhost
done
issue admin admin
for name in bookie-1 bookie-2 bookie-3 bookie-4 gateway console offloader repair admin; do
    printf 'tallybook:%s' "$(cat "$authority/zookeeper")" >"$security/$name/zookeeper.auth"
    open_to_group "$security/$name"
done
issue app writer
issue prometheus reader

# ZooKeeper wants key and certificate in one file, MinIO wants them by other names.
issue zookeeper bookie zookeeper localhost
cat "$security/zookeeper/tls.key" "$security/zookeeper/tls.crt" >"$security/zookeeper/server.pem"
issue minio bookie minio localhost
cp "$security/minio/tls.key" "$security/minio/private.key"
cp "$security/minio/tls.crt" "$security/minio/public.crt"
issue jaeger bookie jaeger localhost
printf tallybook-root >"$security/minio/root-user"
secret "$security/minio/root-password"

# The keys of the archive: not the store's own, but those of a user who may do what Tallybook needs.
mkdir -p "$security/archive" "$security/grafana"
printf tallybook >"$security/archive/key"
secret "$security/archive/secret"
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' \
    "$(cat "$security/archive/key")" "$(cat "$security/archive/secret")" >"$security/archive/credentials"
secret "$security/grafana/admin-password"
for name in zookeeper minio archive grafana; do
    open_to_group "$security/$name"
done
echo "authority in $authority, security directories in $security"
