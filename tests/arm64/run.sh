#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the extension for AArch64 and runs pytest under emulated CPUs, one for each tier:
# cortex-a53 (NEON), cortex-a76 (dotprod), max without SVE (i8mm). A kernel on a CPU that lacks its instructions dies
# with SIGILL, so wrong dispatch shows.
#
#   ROOFLM_ARM64=DIRECTORY tests/arm64/run.sh [pytest arguments; default: what each CPU is here for, see below]
#   ROOFLM_ARM64_CPUS="cortex-a53 cortex-a76"   which CPUs
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

# Every kernel of the tier on the CPU that has it as its best, the engine on each of them; what no tier changes (vectors
# of floats, dequantizers, threads, the command line) once.
kernels="tests/test_kernels_rows.py tests/test_kernels_tile.py"
engine="tests/arm64 tests/test_dispatch.py tests/test_forward_numpy.py tests/test_placement.py"
tests_for() {
    case $1 in
    cortex-a53) echo "$engine $kernels tests/test_vec.py tests/test_dequant.py tests/test_attention.py" ;;
    cortex-a76) echo "$engine $kernels" ;;
    *) echo "$engine $kernels tests/test_vec.py tests/test_attention.py tests/test_kvcache.py tests/test_batch.py" ;;
    esac
}

run() { # CPU [pytest arguments]
    # Layers of real models in NumPy take hours under emulation; here tests/arm64 has their logits.
    local cpu=$1 select="not 1025 and not test_layers_of_smollm2 and not test_layers_of_gemma3"
    shift
    # Threads that wait spin, under emulation for long: once is enough.
    [ "$cpu" != cortex-a53 ] || select+=" and not any_number_of_threads"
    # shellcheck disable=SC2046
    [ $# -gt 0 ] || set -- $(tests_for "$cpu") -k "$select" -m "not slow and not unsanitized"
    QEMU_CPU=$cpu "$python" -m pytest -q -p no:cacheprovider --deselect tests/test_package.py::test_import_is_fast "$@" \
        >"$out/$cpu.log" 2>&1
}

running=() failed=0
finish() { # waits for the oldest and shows what it said
    local cpu=${running[0]%=*} pid=${running[0]##*=} status=0
    running=("${running[@]:1}")
    wait "$pid" || status=$?
    echo "== $cpu"
    cat "$out/$cpu.log"
    [ "$status" -eq 0 ] || failed=1
}
for cpu in $cpus; do
    run "$cpu" "$@" &
    running+=("$cpu=$!")
    [ "${#running[@]}" -lt "${ROOFLM_ARM64_JOBS:-1}" ] || finish
done
while [ "${#running[@]}" -gt 0 ]; do finish; done
exit "$failed"
