#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package, a wheel or the folder of a clone, into an empty environment of each CPython from 3.10 on
# that there is, free-threaded ones too, and runs the tests there. Random calls of every operation are among them where
# build/ has been built with tests. EJK_PYTHONS names the interpreters, by default all on the path.
# Usage: try_wheel.sh <folder for environments> <what to install>
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
package=$(realpath "$2")
calls=$source/build/tests/libconformance_calls.so
[ ! -e "$calls" ] || export EJKERNEL_TEST_CALLS="$calls"
export PYTHONDONTWRITEBYTECODE=1

# Interpreters on the path, each once.
found() {
    for minor in 10 11 12 13 13t 14 14t 15 15t; do
        ! command -v "python3.$minor" || continue
    done
    command -v python3
}

tried=
for python in ${EJK_PYTHONS:-$(found)}; do
    version=$("$python" -c 'import sys
wanted = sys.implementation.name == "cpython" and sys.version_info >= (3, 10)
print(sys.version.split()[0] + getattr(sys, "abiflags", "")) if wanted else None' 2>/dev/null) || continue
    case " $tried " in *" $version "*) continue ;; esac
    [ -n "$version" ] || continue
    environment=$folder/$version
    rm -rf "$environment"
    "$python" -m venv "$environment" || continue
    "$environment/bin/pip" install --quiet --disable-pip-version-check "$package" \
        -r "$source/python/tests/requirements.txt"
    "$environment/bin/ejk" info --operations >/dev/null
    echo "CPython $version:"
    (cd "$folder" && "$environment/bin/python" -m pytest -q -p no:cacheprovider "$source/python/tests")
    tried="$tried $version"
done
[ -n "$tried" ] || exit 77
echo "tried with$tried"
