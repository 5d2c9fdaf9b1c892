"""The build's conventions, as macros.

  muster_library   a part of the library. Includes are rooted at the workspace ("base/error.h"); warnings, C17 and hidden
                   visibility come from .bazelrc. `alwayslink` is set so that //:libmuster.so holds every public symbol.
  muster_test      a cmocka test. `linkstatic = 1` because internal symbols are hidden. It must pass on a machine without
                   a GPU; what it cannot do there it skips visibly, with cmocka's skip() and a reason on stderr.
  muster_gpu_test  a test of the real driver: runs alone, outside the sandbox (it needs /dev/nvidia* and libcuda.so.1),
                   and exits after a visible skip where there is no driver or device. CUDA_VISIBLE_DEVICES reaches it.
  muster_text      a text file, such as PTX, as a string in C.
  muster_bench     a benchmark or tool: a static program that is built with everything but run by nobody.

  Sizes: small (60 s, the default) or medium (300 s), also under the sanitizers, which are five to ten times slower;
  a test that would take minutes there is tagged "slow", and sanitizers leave it out.
  Layers, lowest first: //:muster_h, //base, //device, //device/sim, //cache, //scheduler, //:muster. A layer's
  visibility names the layers above it. Every test, benchmark and example that should run on a machine with GPUs is
  also named in tests/hardware/programs.bzl.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

def muster_library(name, alwayslink = 1, **kwargs):
    cc_library(
        name = name,
        alwayslink = alwayslink,
        **kwargs
    )

# The bundle for machines with GPUs packs programs from everywhere.
_PROGRAM_VISIBILITY = ["//tests/hardware:__pkg__"]

def muster_test(
        name,
        srcs = None,
        deps = [],
        size = "small",
        linkstatic = 1,
        copts = [],
        visibility = _PROGRAM_VISIBILITY,
        **kwargs):
    cc_test(
        name = name,
        srcs = srcs if srcs != None else [name + ".c"],
        copts = ["-UNDEBUG"] + copts,  # an assert() of a test is a check
        deps = deps + ["//third_party/cmocka"],
        size = size,
        linkstatic = linkstatic,
        visibility = visibility,
        **kwargs
    )

def muster_gpu_test(name, size = "medium", tags = [], **kwargs):
    muster_test(
        name = name,
        size = size,
        tags = tags + ["exclusive", "gpu", "local"],
        **kwargs
    )

def muster_bench(name, srcs = None, linkstatic = 1, visibility = _PROGRAM_VISIBILITY, **kwargs):
    cc_binary(
        name = name,
        srcs = srcs if srcs != None else [name + ".c"],
        linkstatic = linkstatic,
        visibility = visibility,
        **kwargs
    )

def muster_text(name, src, symbol):
    """Makes <name>.c, which defines `const char symbol[]` with the text of src; any size, any bytes."""
    native.genrule(
        name = name,
        srcs = [src],
        outs = [name + ".c"],
        cmd = "(echo 'extern const char %s[];'; echo 'const char %s[] = {';" % (symbol, symbol) +
              " od -An -v -tx1 $< | sed 's/\\([0-9a-f][0-9a-f]\\)/0x\\1,/g'; echo '0};') > $@",
    )
