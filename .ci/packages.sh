# shellcheck shell=sh
# Sourced by ./quickstart and ./check: what the build needs, by what is really missing, not by package name alone, so that
# a meson from pip or a compiler from elsewhere counts. POSIX shell.

# need PACKAGE COMMAND...: adds PACKAGE to $missing when COMMAND fails.
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

has_header() {
    printf '#include <%s>\n' "$1" | cc -E -xc - >/dev/null 2>&1
}

has_providers() {
    set -- /etc/libibverbs.d/*.driver
    [ -e "$1" ]
}

need_for_build() {
    need gcc cc --version
    need libc6-dev has_header stdio.h
    need meson meson --version
    need ninja-build ninja --version
    need pkg-config pkg-config --version
    need libcjson-dev pkg-config --exists libcjson
    need libhwloc-dev pkg-config --exists hwloc
    need libopenblas0 sh -c '/sbin/ldconfig -p | grep -q libopenblas.so.0' # opened at run time
}

need_for_tests() {
    need libcmocka-dev pkg-config --exists cmocka
    need g++ c++ --version
    need python3 python3 --version
    need libucx-dev pkg-config --exists ucx
    need libibverbs-dev pkg-config --exists libibverbs
    need ibverbs-providers has_providers
    need busybox-static busybox true # what virtual machines turn themselves off with (tests/rdma)
    need openmpi-bin mpirun --version # a launcher, and what Open MPI sets in the environment
    need iproute2 sh -c 'ip -V && tc -V'
    need util-linux setpriv --version
}

# Install what the arguments (functions above) find missing. Stops the script when that cannot be done.
install_missing() {
    missing=
    for list in "$@"; do
        "$list"
    done
    [ -z "$missing" ] && return
    echo "missing:$missing"
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "This is no Debian system: install what these packages hold (gcc >= 12, meson >= 1.0), then run this again."
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "Install what is missing with this line, then run this again:"
        echo
        echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing"
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # The lists may be absent (containers) or old: fetch them and try once more before giving up.
    # shellcheck disable=SC2086 # a list of words
    apt-get install -qq -y --no-install-recommends $missing </dev/null >/dev/null 2>&1 && return
    apt-get update -qq </dev/null || exit 1
    # shellcheck disable=SC2086
    apt-get install -qq -y --no-install-recommends $missing </dev/null >/dev/null || exit 1
}
