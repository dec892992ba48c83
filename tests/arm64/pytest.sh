#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pytest on the emulated CPU in QEMU_CPU, in the environment that run.sh sets up; without arguments what this CPU is
# here for: every kernel of the tier that is its best, the engine; what no tier changes (vectors of floats,
# dequantizers, threads, the command line) once.
#
#   QEMU_CPU=cortex-a53 tests/arm64/pytest.sh PYTHON [pytest arguments]
set -euo pipefail
python=$1
shift

if [ $# -eq 0 ]; then
    kernels="tests/test_kernels_rows.py tests/test_kernels_tile.py"
    engine="tests/arm64 tests/test_dispatch.py tests/test_forward_numpy.py tests/test_placement.py"
    # Layers of real models in NumPy take hours under emulation; here tests/arm64 has their logits.
    select="not 1025 and not test_layers_of_smollm2 and not test_layers_of_gemma3"
    case $QEMU_CPU in
    cortex-a53)
        more="tests/test_vec.py tests/test_dequant.py tests/test_attention.py"
        # Threads that wait spin, under emulation for long: once is enough.
        select+=" and not any_number_of_threads"
        ;;
    cortex-a76) more="" ;;
    *) more="tests/test_vec.py tests/test_attention.py tests/test_kvcache.py tests/test_batch.py" ;;
    esac
    # shellcheck disable=SC2086
    set -- $engine $kernels $more -k "$select" -m "not slow and not unsanitized"
fi
exec "$python" -m pytest -q -p no:cacheprovider --deselect tests/test_package.py::test_import_is_fast "$@"
