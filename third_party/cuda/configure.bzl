"""Finds <cuda.h>: NVIDIA's where one is installed, otherwise the fallback beside this file.

MUSTER_CUDA_HEADER chooses: unset or "auto" looks in the usual places, "fallback" takes the fallback, "real" fails when
there is no real one, and anything else is the path of an include directory. CUDA_PATH is looked at first.
"""

def _has_real_header(repository_ctx, directory):
    header = repository_ctx.path(directory + "/cuda.h")
    if not header.exists:
        return False

    # NVIDIA's header, not another project's file of that name.
    return "CUDA_VERSION" in repository_ctx.read(header) and "cuGetProcAddress" in repository_ctx.read(header)

def _candidates(repository_ctx):
    directories = []
    if "CUDA_PATH" in repository_ctx.os.environ:
        directories.append(repository_ctx.os.environ["CUDA_PATH"] + "/include")
    directories.append("/usr/local/cuda/include")
    local = repository_ctx.path("/usr/local")
    versions = [str(entry) for entry in local.readdir() if entry.basename.startswith("cuda-")] if local.exists else []
    directories.extend([entry + "/include" for entry in reversed(sorted(versions))])
    directories.extend(["/opt/cuda/include", "/usr/lib/cuda/include", "/usr/include"])
    return directories

def _find(repository_ctx):
    choice = repository_ctx.os.environ.get("MUSTER_CUDA_HEADER", "auto")
    if choice == "fallback":
        return None
    if choice not in ["auto", "real", ""]:
        if not _has_real_header(repository_ctx, choice):
            fail("MUSTER_CUDA_HEADER=%s holds no cuda.h of NVIDIA's; give an include directory, auto, real or fallback" % choice)
        return choice
    for directory in _candidates(repository_ctx):
        if _has_real_header(repository_ctx, directory):
            return directory
    if choice == "real":
        fail("MUSTER_CUDA_HEADER=real, but no cuda.h in " + ", ".join(_candidates(repository_ctx)))
    return None

def _cuda_header_impl(repository_ctx):
    found = _find(repository_ctx)
    if found == None:
        chosen = "fallback"
        repository_ctx.symlink(Label("//third_party/cuda:cuda.h"), "fallback/cuda.h")
    else:
        chosen = "real"
        repository_ctx.symlink(found + "/cuda.h", "real/cuda.h")
    repository_ctx.template("BUILD", Label("//third_party/cuda:header.BUILD.tpl"), {"%{chosen}": chosen})

cuda_header = repository_rule(
    implementation = _cuda_header_impl,
    environ = ["CUDA_PATH", "MUSTER_CUDA_HEADER"],
    local = True,
)
