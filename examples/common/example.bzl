"""ptx_example: an example whose kernels lie beside it."""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load("//examples/common:embed.bzl", "embed_text")

def ptx_example(name, srcs, deps = [], **kwargs):
    """The program `name`, with kernels.ptx as the string kernels_ptx; also under the name of its folder, for `bazel run`."""
    embed_text(
        name = "kernels_ptx",
        src = "kernels.ptx",
        symbol = "kernels_ptx",
    )
    cc_binary(
        name = name,
        srcs = srcs + [":kernels_ptx"],
        visibility = ["//tests:__subpackages__"],
        deps = deps + [
            "//:muster",
            "//examples/common",
        ],
        **kwargs
    )
    native.exports_files(["expected_output.txt"])
    native.alias(
        name = native.package_name().split("/")[-1],
        actual = ":" + name,
    )
