#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packs the command, the library, the tests of GPUs and the shared libraries they need into one folder that may be
# carried anywhere: `bin/ejk`, `bin/bytelm --device cuda data/bytelm`, `run.sh` for the tests, and `gpu_sanitize.sh bin`
# for those under compute-sanitizer. The build has run paths of its own (-DEJK_PORTABLE=ON).
# Usage: portable.sh <build folder> <folder to make>
set -eu
build=$(cd "$1" && pwd)
data=$(cd "$(dirname "$0")/../examples/data" && pwd)
folder=$2

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/data"
cp "$build/ejk" "$build/examples/bytelm" "$build/examples/serve" "$build"/tests/test_* "$folder/bin/"
cp -r "$data/bytelm" "$data/bytemix" "$data/requests.txt" "$folder/data/"
cp "$(dirname "$0")/gpu_sanitize.sh" "$folder/"
cp "$build"/tests/libfake_*.so "$folder/bin/"
cp -P "$build"/libejkernel.so* "$folder/lib/"

# The C library belongs to the system, as its loader does.
ldd "$folder"/bin/ejk "$folder"/bin/bytelm "$folder"/bin/serve "$folder"/bin/test_* "$build/libejkernel.so" |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt)\.so\.[0-9]+$|/libejkernel\.so' |
    while read -r library; do cp -L "$library" "$folder/lib/"; done
strip --strip-unneeded "$folder"/bin/* "$folder"/lib/*.so*

cat >"$folder/run.sh" <<'EOF'
#!/bin/sh
# Runs the tests, or those named. One that could not run here is skipped. Fails if one fails.
here=$(cd "$(dirname "$0")" && pwd)
export EJK_TEST_DATA="$here/data"
status=0
[ $# -gt 0 ] || set -- $(cd "$here/bin" && ls -d test_*)
for name in "$@"; do
    "$here/bin/$name" && answer=0 || answer=$?
    case $answer in
    0) echo "$name: passed" ;;
    77) echo "$name: skipped" ;;
    *) echo "$name: failed ($answer)"; status=1 ;;
    esac
done
exit $status
EOF
chmod +x "$folder/run.sh"
echo "$folder: $(du -sb "$folder" | cut -f1) bytes"
