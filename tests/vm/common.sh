# shellcheck shell=bash
# What image, rootfs and boot share: where things are cached, and what goes in.

set -euo pipefail
shopt -s inherit_errexit

# shellcheck disable=SC2034 # used where this is sourced
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/numa-lease/vm

die() {
    echo "${0##*/}: $*" >&2
    exit 64
}

check_release() {
    case ${1:-} in
    bookworm | trixie) ;;
    *) die "unknown release '${1:-}': bookworm or trixie" ;;
    esac
}

join() {
    local IFS=,
    echo "$*"
}

# The packages of the guest: what numa-lease needs to run, and what its scenarios use.
guest_packages() {
    local list=(
        systemd systemd-sysv dbus polkitd libpam-systemd linux-image-cloud-amd64
        openssh-server openssh-client sudo util-linux procps iproute2 strace
        numactl hwloc-nox python3-minimal
        libsystemd0 libnuma1 libhwloc15
    )
    case $1 in
    bookworm) list+=(libyaml-cpp0.7 libspdlog1.10) ;;
    trixie) list+=(libyaml-cpp0.8 libspdlog1.15) ;;
    esac
    join "${list[@]}"
}

# The packages of the build root: enough to configure, build, test and package in a chroot.
build_packages() {
    local list=(
        g++ ccache cmake ninja-build pkg-config dpkg-dev file dbus
        libsystemd-dev libhwloc-dev libnuma-dev libyaml-cpp-dev libspdlog-dev
        libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
    )
    case $1 in
    bookworm) list+=(systemd) ;; # for systemd.pc
    trixie) list+=(systemd-dev) ;;
    esac
    join "${list[@]}"
}

# cached KEY_TEXT NAME MAKER: prints the folder $cache/NAME-HASH; where there is none,
# calls `MAKER FOLDER` on a temporary one, which takes its name only when complete. Older ones of that name go.
cached() {
    local hash dir
    hash=$(sha256sum <<<"$1" | cut -c1-12)
    dir=$cache/$2-$hash
    mkdir -p "$cache"
    (
        flock 9
        [[ -d $dir ]] && exit 0
        rm -rf "$dir.new"
        mkdir "$dir.new"
        "$3" "$dir.new" >&2
        mv "$dir.new" "$dir"
        find "$cache" -maxdepth 1 -name "$2-*" ! -name "$2-$hash*" -mmin +60 -exec rm -rf {} +
    ) 9>"$dir.lock"
    echo "$dir"
}
