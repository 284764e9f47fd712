#!/usr/bin/env bash
# Install the Debian packages of the named groups that this machine lacks: packages.sh build|test...
# Their services are neither started nor enabled: the tests start their own, in namespaces of their own.
set -euo pipefail

declare -A groups=(
    # The bootloader is CPython, linked from Debian's static library.
    [build]="gcc binutils libc6-dev libpython3-dev python3 python3-venv zlib1g-dev"
    # Real networks and real servers for the tests, the demo and the benchmark.
    [test]="busybox-static dnsmasq-base ethtool iproute2 iputils-ping isc-dhcp-server kea-dhcp4-server \
openvswitch-switch procps qemu-system-x86 tcpdump udhcpd util-linux"
)

missing=()
for group in "$@"; do
    for package in ${groups[$group]}; do
        [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
            missing+=("$package")
    done
done
((${#missing[@]})) || exit 0

# Two set-ups at once would remove each other's policy-rc.d.
exec {lock}>/run/lock/ovn-k8s-cni-overlay-packages
flock "$lock"

# invoke-rc.d and deb-systemd-invoke ask this file; 101 means "must not" (invoke-rc.d(8)). A machine that has one keeps it.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt=(apt-get --quiet=2 --option DPkg::Lock::Timeout=600)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null

for package in "${missing[@]}"; do
    while read -r script; do
        update-rc.d "${script##*/}" disable # the systemd unit of the same name too
    done < <(dpkg --listfiles "$package" | grep '^/etc/init\.d/.' || true)
done
