#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs Python's tests of arrays, masks and documents on a wheel for 64-bit Arm by qemu, with the CPython of a folder of
# aarch64_sysroot.sh. Usage: try_wheel_aarch64.sh <folder> <wheel>
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
sysroot=$(cd "$1" && pwd)
wheel=$2
python=$(ls "$sysroot"/usr/bin/python3.* | head -1)
version=${python##*/python}
site=$sysroot/site
rm -rf "$site" "$sysroot/wheels"
python3 -m venv "$sysroot/pip"
"$sysroot/pip/bin/pip" download --quiet --disable-pip-version-check --only-binary :all: --python-version "$version" \
    --implementation cp --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_17_aarch64 --dest "$sysroot/wheels" -r "$source/python/tests/requirements.txt"
for each in "$sysroot"/wheels/*.whl "$wheel"; do "$sysroot/pip/bin/python" -m zipfile -e "$each" "$site"; done
export PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1
# An interpreter that starts itself by qemu, too.
emulated=$sysroot/usr/bin/emulated-python
cat >"$emulated" <<END
#!/bin/sh
exec qemu-aarch64 -0 "$emulated" -L "$sysroot" "$python" "\$@"
END
chmod +x "$emulated"
cd "$sysroot"
tests=$source/python/tests
exec "$emulated" -m pytest -q -p no:cacheprovider "$tests/test_arrays.py" "$tests/test_masks.py" \
    "$tests/test_documents.py"
