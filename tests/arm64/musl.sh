#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes, once, a Python 3.11 with NumPy for musl, x86-64 and AArch64, to import the musllinux wheels in: no package has
# one. CPython and zlib are compiled from Debian's sources by the system's gcc against Debian's musl, which setup.sh
# unpacked; only what NumPy, pip and this library import is built, into the interpreter itself.
#
#   tests/arm64/musl.sh DIRECTORY         that of setup.sh
# Result: DIRECTORY/musl/x86_64/bin/python3.11, and DIRECTORY/musl/aarch64/bin/python3-qemu for the emulator.
set -euo pipefail
dir=$(realpath -m "${1:?usage: $0 DIRECTORY}")
"$(dirname "$0")/setup.sh" "$dir"
sysroot=$dir/sysroot musl=$dir/musl work=$dir/musl/work
helper=$(dirname "$0")/apt_config.sh
stamp="$(cat "$0" "$helper" | sha256sum | cut -d' ' -f1) $dir"
if [ "$(cat "$musl/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi
rm -rf "$musl"
mkdir -p "$work"
if ! command -v make >/dev/null; then
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends make
fi

# Sources, without making the system's own apt list them.
# shellcheck source=tests/arm64/apt_config.sh
. "$helper"
config=$(private_apt "$work/apt" 's/^Types:.*/Types: deb-src/; s/^deb /deb-src /')
cd "$work"
APT_CONFIG=$config apt-get update -qq
APT_CONFIG=$config apt-get source -qq --download-only --tar-only --only-source python3.11 zlib
for archive in *.orig.tar.*; do tar -xf "$archive"; done
python_source=$(echo "$work"/Python-3.11.*) zlib=$(echo "$work"/zlib-*)

# Tools of the build that must be a Python 3.11 and can be any.
build_python=$(for p in python3.11 /usr/bin/python3.11 "${PIP_PYTHON:-python3}"; do
    ! "$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { command -v "$p" && break; }
done)
[ -n "$build_python" ] || { echo "$0: needs a Python 3.11 to build one" >&2; exit 1; }

modules="array _bisect _contextvars _csv _heapq _json _opcode _pickle _queue _random _struct _typing math cmath _statistics
    _datetime binascii _md5 _sha1 _sha256 _sha512 _sha3 _blake2 unicodedata fcntl grp mmap _posixsubprocess resource select
    _socket termios"

build() { # x86_64 | aarch64
    local arch=$1 gcc=gcc ar=ar asm made=$work/$1 prefix=$musl/$1 name
    asm=/usr/include/x86_64-linux-gnu/asm
    [ "$arch" = x86_64 ] || asm=$sysroot/usr/include/aarch64-linux-gnu/asm
    if [ "$arch" != "$(uname -m)" ]; then gcc=$arch-linux-gnu-gcc ar=$arch-linux-gnu-ar; fi
    mkdir -p "$made/include" "$made/zlib" "$made/python/Modules" "$prefix/bin" "$prefix/lib"
    # The loader, which is the C library, too, and what musl has no headers of: Linux's own.
    cp "$sysroot/lib/$arch-linux-musl/libc.so" "$prefix/lib/ld-musl-$arch.so.1"
    ln -s "ld-musl-$arch.so.1" "$prefix/lib/libc.so" # or the archive beside it is linked, in which dlopen does nothing
    ln -s "$sysroot/usr/include/linux" "$sysroot/usr/include/asm-generic" "$asm" "$made/include/"
    sed "s|/usr/|$sysroot/usr/|g; s|/lib/ld-musl|$prefix/lib/ld-musl|" "$sysroot/usr/lib/$arch-linux-musl/musl-gcc.specs" >"$made/specs"
    cat >"$made/cc" <<CC
#!/bin/sh
case \$1 in --print-multiarch) echo "$arch-linux-musl" && exit ;; esac
exec "$gcc" -specs "$made/specs" -L"$prefix/lib" "\$@" -isystem "$made/include"
CC
    chmod +x "$made/cc"
    (
        cd "$made/zlib"
        "$made/cc" -O1 -fPIC -DHAVE_UNISTD_H -c "$zlib"/*.c
        "$ar" rcs libz.a ./*.o
    )
    cd "$made/python"
    # Where it is built is called musl, too: that is what this version looks at for the names of extensions. What comes
    # last cannot be found out by a cross build.
    CC=$made/cc AR=$ar READELF=$(command -v readelf) OPT="-O1 -DNDEBUG" PKG_CONFIG=false "$python_source/configure" -q \
        --build="$(uname -m)-build-linux-musl" --host="$arch-linux-musl" --with-build-python="$build_python" --prefix="$prefix" \
        --without-ensurepip --disable-test-modules --disable-ipv6 ac_cv_file__dev_ptmx=no ac_cv_file__dev_ptc=no
    {
        echo "*static*"
        for name in $modules; do sed -n "s/^@[A-Z0-9_]*@\($name .*\)/\1/p" "$python_source/Modules/Setup.stdlib.in"; done
        echo "zlib zlibmodule.c -I$zlib -L$made/zlib -lz"
    } >Modules/Setup.local
    make -s python pybuilddir.txt
    cp python "$prefix/bin/python3.11"
    cp -r "$python_source/Lib" "$prefix/lib/python3.11"
    rm -rf "$prefix"/lib/python3.11/{test,idlelib,tkinter,turtledemo,lib2to3}
    cp "$(cat pybuilddir.txt)"/_sysconfigdata*.py "$prefix/lib/python3.11/"
    mkdir -p "$prefix/lib/python3.11/lib-dynload" "$prefix/include/python3.11" # it says so when the first is missing
    cp pyconfig.h "$prefix/include/python3.11/"
    "$build_python" -m compileall -q "$prefix/lib/python3.11" || true # bad syntax on purpose in some files
    # The libraries in newer wheels of NumPy are relocated in a way (DT_RELR) that musl knows from 1.2.4 on; Debian 12 has 1.2.3.
    "${PIP_PYTHON:-python3}" -m pip install -q --disable-pip-version-check --root-user-action=ignore \
        --target "$prefix/lib/python3.11/site-packages" --platform "musllinux_1_1_$arch" --python-version 3.11 \
        --implementation cp --only-binary=:all: "numpy==1.26.*"
}

# One for each core; a failure shows what it said.
for arch in x86_64 aarch64; do
    (build "$arch") >"$work/$arch.log" 2>&1 &
    pids+=("$!")
done
for pid in "${pids[@]}"; do wait "$pid" || { tail -n 20 "$work"/*.log >&2; exit 1; }; done
cat >"$musl/aarch64/bin/python3-qemu" <<'RUN'
#!/bin/sh
d=${0%/python3-qemu}; : "${QEMU_CPU:=max,sve=off}"; export QEMU_CPU
exec "${QEMU:-qemu-aarch64-static}" -0 "$0" "$d/python3.11" "$@"
RUN
chmod +x "$musl/aarch64/bin/python3-qemu"
rm -rf "$work"
echo "$stamp" >"$musl/stamp"
