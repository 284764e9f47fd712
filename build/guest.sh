#!/usr/bin/env bash
# Unpack the kernel of the test guest into .tools/guest: Debian's cloud kernel, downloaded as a package, not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
guest=.tools/guest
[[ ! -e $guest/.done ]] || exit 0
rm -rf "$guest"
mkdir -p "$guest/unpacked"
cd "$guest"
newest() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: *//p' | head -n 1; }
package=$(newest)
[[ -n $package ]] || { apt-get --quiet=2 update && package=$(newest); }
download=(apt-get --quiet=2 --option APT::Sandbox::User=root download "$package")
"${download[@]}" || { apt-get --quiet=2 update && "${download[@]}"; }
dpkg-deb --extract ./*.deb unpacked
cp unpacked/boot/vmlinuz-* vmlinuz
# In the order in which they can be loaded.
mkdir modules
number=10
for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net; do
    cp "$(find unpacked/lib/modules -name "$module.ko")" "modules/$number-$module.ko"
    number=$((number + 1))
done
rm -rf unpacked ./*.deb
touch .done
