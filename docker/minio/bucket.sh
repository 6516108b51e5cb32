#!/bin/sh
# Make the bucket of the archive, and a user who may do there what docs/operate/security.md says, and nothing else.
#
#   bucket.sh ENDPOINT CERTIFICATES ARCHIVE POLICY
#
# CERTIFICATES has ca.crt and the store's own user, ARCHIVE the user to be made. What is there already stays.
set -eu

endpoint=$1 certificates=$2 archive=$3 policy=$4
bucket=tallybook

export MC_CONFIG_DIR=/tmp/mc
mkdir -p "$MC_CONFIG_DIR/certs/CAs"
cp "$certificates/ca.crt" "$MC_CONFIG_DIR/certs/CAs/tallybook.crt"
# Not as an argument: lists of processes show these.
MC_HOST_store=https://$(cat "$certificates/root-user"):$(cat "$certificates/root-password")@$endpoint
export MC_HOST_store

user=$(cat "$archive/key")
mc mb --ignore-existing "store/$bucket"
mc admin policy create store "$bucket" "$policy"
printf '%s\n%s\n' "$user" "$(cat "$archive/secret")" | mc admin user add store
case $(mc admin user info --json store "$user") in
*'"policyName":"'"$bucket"'"'*) ;;
*) mc admin policy attach store "$bucket" --user "$user" ;;
esac
