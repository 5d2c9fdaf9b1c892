#!/bin/bash
# bazel run //tools:install -- [PREFIX]     (default /usr/local; DESTDIR is honoured)
# Installs muster.h, libmuster.so, libmuster.a, muster.pc and the licence.
set -euo pipefail
prefix=${1:-/usr/local}
case $prefix in
/*) ;;
*) prefix=${BUILD_WORKING_DIRECTORY:-$PWD}/$prefix ;;
esac
root=${DESTDIR:-}$prefix

number() { awk -v name="MUSTER_VERSION_$1" '$2 == name { print $3 }' muster.h; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)
soname=libmuster.so.$(number MAJOR)

install -d "$root/include" "$root/lib/pkgconfig" "$root/share/doc/muster"
for header in muster*.h; do install -m 644 "$header" "$root/include/"; done
install -m 755 libmuster.so "$root/lib/libmuster.so.$version"
ln -sf "libmuster.so.$version" "$root/lib/$soname"
ln -sf "$soname" "$root/lib/libmuster.so"
install -m 644 libmuster.a "$root/lib/"
install -m 644 LICENSE "$root/share/doc/muster/"
cat >"$root/lib/pkgconfig/muster.pc" <<END
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: muster
Description: Runs job graphs on every GPU of a machine
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lmuster
Requires.private: jansson libb2
Libs.private: -lck -ldl -lm -pthread
END
echo "installed muster $version in $root"
