"""What the hardware bundle holds, one line a program. run.sh runs them in this order.

program(suite, label, args = "", env = "", seconds = 300): suite is tests, conformance, bench or examples; env is
"NAME=value ..."; a program may be listed more than once with other arguments.
"""

def program(suite, label, args = "", env = "", seconds = 300):
    return struct(suite = suite, label = label, args = args, env = env, seconds = seconds)

_QUICKSTART = "examples/01_quickstart/expected_output.txt examples/01_quickstart/quickstart"
_SCAN = "examples/02_scan/expected_output.txt examples/02_scan/scan --driver=%s --pattern=AA --pattern=TATA " + \
        "--pattern=GATTACA --pattern=ACA examples/02_scan/sample.txt"

PROGRAMS = [
    program("tests", "//tests/base:alloc_test"),
    program("tests", "//tests/base:clock_test"),
    program("tests", "//tests/base:digest_test"),
    program("tests", "//tests/base:epoch_test"),
    program("tests", "//tests/base:error_test"),
    program("tests", "//tests/base:log_test"),
    program("tests", "//tests/base:status_test"),
    program("tests", "//tests/cache:compile_test"),
    program("tests", "//tests/cache:disk_cache_processes_test"),
    program("tests", "//tests/cache:disk_cache_test"),
    program("tests", "//tests/cache:dump_test"),
    program("tests", "//tests/cache:identity_test"),
    program("tests", "//tests/cache:module_cache_test"),
    program("tests", "//tests/cache:occupancy_cache_test"),
    program("tests", "//tests/cache:ptx_cache_stress_test"),
    program("tests", "//tests/cache:ptx_cache_test"),
    program("tests", "//tests/cache:validation_cache_test"),
    program("tests", "//tests/device:capability_test"),
    program("tests", "//tests/device:device_test"),
    program("tests", "//tests/device:diagnostic_test"),
    program("tests", "//tests/device:geometry_test"),
    program("tests", "//tests/device:ledger_test"),
    program("tests", "//tests/device:residency_test"),
    program("tests", "//tests/device:telemetry_test"),
    program("tests", "//tests/scheduler:buffer_test"),
    program("tests", "//tests/scheduler:fault_test"),
    program("tests", "//tests/scheduler:graph_test"),
    program("tests", "//tests/scheduler:handle_test"),
    program("tests", "//tests/scheduler:injection_test"),
    program("tests", "//tests/scheduler:program_test"),
    program("tests", "//tests/scheduler:random_graph_test"),
    program("tests", "//tests/scheduler:run_test"),
    program("tests", "//tests/scheduler:runtime_test"),
    program("tests", "//tests/scheduler:scenario_test"),
    program("tests", "//tests/scheduler:shard_test"),
    program("tests", "//tests/stress:submit_stress"),
    program("tests", "//tests/examples:patterns_test"),
    program("tests", "//tests/examples:errors_test", args = "examples/01_quickstart/quickstart examples/02_scan/scan"),
    program("bench", "//tests/bench:launch_overhead_bench", args = "--driver cuda"),
    program("bench", "//tests/bench:host_cost_bench", seconds = 600),
    program("examples", "//tests/examples:quickstart_test", args = _QUICKSTART + " --driver=sim --devices=2"),
    program("examples", "//tests/examples:quickstart_test", args = _QUICKSTART + " --driver=cuda"),
    program("examples", "//tests/examples:scan_output_test", args = _SCAN % "sim"),
    program("examples", "//tests/examples:scan_output_test", args = _SCAN % "cuda"),
    program("examples", "//tests/examples:scan_test", args = "examples/02_scan/scan cuda"),
]
