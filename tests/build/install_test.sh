#!/bin/bash
# What `bazel run //tools:install` installs suffices to build and run an application without Bazel, shared and static.
set -euo pipefail
root=$TEST_TMPDIR/prefix
tools/install "$root"
cat >"$TEST_TMPDIR/application.c" <<'END'
#include <muster.h>
#include <stdio.h>

int main(void) {
    muster_error error;
    muster_config config = {.struct_size = sizeof config, .driver = "no such driver"};
    muster_runtime *runtime = NULL;
    if (muster_runtime_create(&config, &runtime, &error) == MUSTER_OK) return 1;
    puts(muster_status_name(error.status));
    return error.status != MUSTER_INVALID_CONFIG;
}
END
cd "$TEST_TMPDIR"
flags=()
case $(nm "$root/lib/libmuster.so" 2>/dev/null || true) in
*__asan_init*) flags=(-fsanitize=address,undefined) ;;
*__tsan_init*) flags=(-fsanitize=thread) ;;
esac
compiler=$(command -v gcc || command -v clang || command -v cc)
sed 's/^/    | /' "$root/lib/pkgconfig/muster.pc"

"$compiler" "${flags[@]}" -I"$root/include" application.c -o shared -L"$root/lib" -lmuster -Wl,-rpath,"$root/lib"
./shared
grep -q 'libmuster.so.[0-9]* => .*prefix/lib' <<<"$(ldd ./shared)" # no pipe: grep ends before ldd does
"$compiler" "${flags[@]}" -I"$root/include" application.c -o static "$root/lib/libmuster.a" -ljansson -lb2 -lck -ldl -lm -pthread
./static
