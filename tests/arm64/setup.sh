#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes what the AArch64 tests run in, once: an arm64 Python and its libraries unpacked from Debian packages, and
# NumPy, pytest and hypothesis as wheels. Nothing is installed into the system but the emulator and the compiler,
# and those only when they are missing.
#
#   tests/arm64/setup.sh DIRECTORY        (or ROOFLM_ARM64; must lie outside the repository)
set -euo pipefail
dir=${1:-${ROOFLM_ARM64:-}}
[ -n "$dir" ] || { echo "usage: $0 DIRECTORY" >&2; exit 2; }
repo=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(realpath -m "$dir")
case $dir/ in "$repo"/*) echo "$0: $dir lies inside the repository" >&2; exit 2 ;; esac
sysroot=$dir/sysroot apt=$dir/apt
helper=$repo/tests/arm64/apt_config.sh
stamp=$(cat "$0" "$helper" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

grep -qs "^VERSION_CODENAME=bookworm" /etc/os-release || {
    echo "$0: takes its arm64 packages from Debian 12 (bookworm), which this system is not: run it in a debian:12 container" >&2
    exit 1
}
if ! command -v qemu-aarch64-static >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends \
        qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross
fi

rm -rf "$sysroot" "$apt" "$dir/site"
mkdir -p "$sysroot"
# shellcheck source=tests/arm64/apt_config.sh
. "$helper"
config=$(private_apt "$apt" "" 'APT::Architecture "arm64"; APT::Architectures { "arm64"; };')
APT_CONFIG=$config apt-get update -qq
APT_CONFIG=$config apt-get install -y -qq --download-only python3.11 libpython3.11-dev libstdc++6 libgomp1 musl-dev
for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$sysroot"; done
rm -rf "$apt"
# musl of both architectures, for test_portability.py and test_wheels.py.
(cd "$sysroot" && apt-get download -qq musl musl-dev && for deb in musl*.deb; do dpkg-deb -x "$deb" .; done && rm musl*.deb)

# Host byte code serves the guest: the same version, and far faster than compiling under emulation.
host=$(command -v python3.11 || true)
[ -z "$host" ] || "$host" -m compileall -q "$sysroot/usr/lib/python3.11" || true
"${PIP_PYTHON:-python3}" -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$dir/site" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    --python-version 3.11 --implementation cp --only-binary=:all: numpy pytest hypothesis setuptools gguf jinja2

# A Python that finds its own emulator and libraries, wherever the directory is.
cat >"$sysroot/usr/bin/python3-qemu" <<'RUN'
#!/bin/sh
d=${0%/usr/bin/*}; : "${QEMU_CPU:=max,sve=off}"; export QEMU_CPU
exec "${QEMU:-qemu-aarch64-static}" -0 "$0" -L "$d" "$d/usr/bin/python3.11" "$@"
RUN
chmod +x "$sysroot/usr/bin/python3-qemu"
echo "$stamp" >"$dir/stamp"
