#!/bin/bash
# machine.sh NAME FOLDER [SHARED...]: in a network, mount and UTS namespace of its own, be a machine: its own /tmp, /dev/shm and host name.
# FOLDER is its disk while it is set up. SHARED: folders below /tmp that it sees too. Says "up" and keeps the namespaces until it is killed.
set -e
name=$1 disk=$2
shift 2
mount --make-rprivate /
mkdir -p "$disk"
mount -t tmpfs -o size=2g none "$disk"
for folder in "$@"; do
  mkdir -p "$disk/${folder#/tmp/}"
  mount --bind "$folder" "$disk/${folder#/tmp/}"
done
chmod 1777 "$disk"
mount --rbind "$disk" /tmp # --rbind, or the folders bound above are lost
mount -t tmpfs -o size=1g none /dev/shm
hostname "$name"
echo up
exec sleep infinity
