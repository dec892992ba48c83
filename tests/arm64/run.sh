#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the extension for AArch64 and runs pytest under emulated CPUs, one for each tier:
# cortex-a53 (NEON), cortex-a76 (dotprod), max without SVE (i8mm). A kernel on a CPU that lacks its instructions dies
# with SIGILL, so wrong dispatch shows.
#
#   ROOFLM_ARM64=DIRECTORY tests/arm64/run.sh [pytest arguments; default: what each CPU is here for, see pytest.sh]
#   ROOFLM_ARM64_CPUS="cortex-a53 cortex-a76"   which CPUs (each_cpu.sh runs them)
#   ROOFLM_ARM64_JOBS=2                         so many CPUs side by side
#   CC=aarch64-linux-gnu-gcc                    or "clang --target=aarch64-linux-gnu"
#   ROOFLM_ARM64_BUILD=only                     build, print where, and stop
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(realpath -m "${ROOFLM_ARM64:?set it to the directory made by setup.sh}")
cpus=${ROOFLM_ARM64_CPUS:-cortex-a53 cortex-a76 max,sve=off}
: "${CC:=aarch64-linux-gnu-gcc}"
"$repo/tests/arm64/setup.sh" "$dir"
python=$dir/sysroot/usr/bin/python3-qemu
unset PYTHONDONTWRITEBYTECODE PYTHONHOME
export PYTHONPATH=$dir/site LC_ALL=C.UTF-8

# One build directory per source tree and compiler; the package is copied so that the tree stays clean.
out=$dir/build/$(printf '%s %s' "$repo" "$CC" | sha256sum | cut -c1-12)
mkdir -p "$out"
include=$dir/sysroot/usr/include
(
    cd "$repo"
    # -idirafter: Debian's pyconfig.h includes one by architecture.
    CC=$CC LDSHARED="$CC -shared" CFLAGS="-O2 -I$include/python3.11 -idirafter $include ${CFLAGS:-}" \
        PYTHONWARNINGS=ignore "$python" setup.py -q build_ext --build-temp "$out/temp" --build-lib "$out/lib"
)
cp -r "$repo/python/rooflm/." "$out/lib/rooflm/"
find "$out/lib/rooflm" -name '*x86_64*.so' -delete
if [ "${ROOFLM_ARM64_BUILD:-}" = only ]; then
    echo "$out/lib"
    exit 0
fi

export CC PYTHONPATH=$out/lib:$dir/site OPENBLAS_NUM_THREADS=1
cd "$repo"

exec tests/arm64/each_cpu.sh "${ROOFLM_ARM64_JOBS:-1}" "$out" "$cpus" tests/arm64/pytest.sh "$python" "$@"
