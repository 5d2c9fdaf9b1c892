# Written by third_party/cuda/configure.bzl. Muster reaches these through //third_party/cuda, which says who may.
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

alias(
    name = "header",
    actual = "%{header}",
)

cc_library(
    name = "real",
    %{real_attributes}
)
