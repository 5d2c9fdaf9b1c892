load("@rules_cc//cc:defs.bzl", "cc_library")

# Muster reaches it through //third_party/cuda, which says who may.
package(default_visibility = ["//visibility:public"])

# The header that Muster is compiled with.
cc_library(
    name = "header",
    hdrs = ["%{chosen}/cuda.h"],
    includes = ["%{chosen}"],
)
