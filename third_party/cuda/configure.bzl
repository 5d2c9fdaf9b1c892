"""Finds <cuda.h>: NVIDIA's where one is installed, otherwise the fallback beside this file.

MUSTER_CUDA_HEADER chooses: unset or "auto" looks in the usual places, CUDA_PATH first; "fallback" takes the fallback;
"real" fails when there is no real one; anything else is the path of an include directory.

@cuda_header//:header is what Muster is compiled with, and @cuda_header//:real is NVIDIA's header for comparison, without
a header (and without MUSTER_HAVE_REAL_CUDA_HEADER) where there is none.
"""

_OLDEST = 12030

def _version(repository_ctx, directory):
    """CUDA_VERSION of NVIDIA's cuda.h in `directory`; 0 when it holds none, or another project's file of that name."""
    header = repository_ctx.path(directory + "/cuda.h")
    if not header.exists:
        return 0
    text = repository_ctx.read(header)
    if "cuGetProcAddress" not in text or "#define CUDA_VERSION " not in text:
        return 0
    digits = text.split("#define CUDA_VERSION ")[1].split("\n")[0].strip()
    return int(digits) if digits.isdigit() else 0

def _candidates(repository_ctx):
    directories = []
    if repository_ctx.os.environ.get("CUDA_PATH"):
        directories.append(repository_ctx.os.environ["CUDA_PATH"] + "/include")
    directories.append("/usr/local/cuda/include")
    local = repository_ctx.path("/usr/local")
    if local.exists:
        versions = [str(entry) for entry in local.readdir() if entry.basename.startswith("cuda-")]
        directories.extend([entry + "/include" for entry in reversed(sorted(versions))])
    directories.extend(["/opt/cuda/include", "/usr/lib/cuda/include", "/usr/include"])
    return directories

def _cuda_header_impl(repository_ctx):
    choice = repository_ctx.os.environ.get("MUSTER_CUDA_HEADER", "auto")
    named = choice not in ["", "auto", "fallback", "real"]
    candidates = [choice] if named else _candidates(repository_ctx)
    found = [directory for directory in candidates if _version(repository_ctx, directory) >= _OLDEST]
    if not found and (named or choice == "real"):
        fail("MUSTER_CUDA_HEADER=%s: no cuda.h of CUDA %d.%d or newer in %s; name an include directory that has one, or use fallback" %
             (choice, _OLDEST // 1000, _OLDEST % 1000 // 10, ", ".join(candidates)))

    if found:
        repository_ctx.symlink(found[0] + "/cuda.h", "include/cuda.h")
    use_real = found and choice != "fallback"
    repository_ctx.template("BUILD", Label("//third_party/cuda:header.BUILD.tpl"), {
        "%{header}": ":real" if use_real else "@muster//third_party/cuda:fallback",
        "%{real_attributes}": """hdrs = ["include/cuda.h"],
    defines = ["MUSTER_HAVE_REAL_CUDA_HEADER"],
    includes = ["include"],""" if found else "",
    })

cuda_header = repository_rule(
    implementation = _cuda_header_impl,
    environ = ["CUDA_PATH", "MUSTER_CUDA_HEADER"],
    local = True,
)
