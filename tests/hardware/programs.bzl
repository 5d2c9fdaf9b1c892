"""What the hardware bundle holds, one line a program. run.sh runs them in this order.

program(suite, label, args = "", env = "", seconds = 300): suite is tests, conformance, bench or examples; env is
"NAME=value ..."; a program may be listed more than once with other arguments.
"""

def program(suite, label, args = "", env = "", seconds = 300):
    return struct(suite = suite, label = label, args = args, env = env, seconds = seconds)

PROGRAMS = [
    program("tests", "//tests/base:alloc_test"),
    program("tests", "//tests/base:clock_test"),
    program("tests", "//tests/base:error_test"),
    program("tests", "//tests/base:log_test"),
    program("tests", "//tests/base:status_test"),
]
