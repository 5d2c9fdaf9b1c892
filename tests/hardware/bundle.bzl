"""hardware_bundle: a tar of programs, their data and run.sh, for machines with GPUs and without a build environment."""

_Arguments = provider(fields = ["words"])

# The arguments that a test's own rule gives it, with paths as they are in the bundle.
def _arguments_impl(target, ctx):
    words = []
    for word in getattr(ctx.rule.attr, "args", []):
        for name in ["location", "execpath"]:
            word = word.replace("$(%s " % name, "$(rootpath ").replace("$(%ss " % name, "$(rootpaths ")
        words.append(ctx.expand_location(word, getattr(ctx.rule.attr, "data", [])))
    return [_Arguments(words = words)]

_arguments = aspect(implementation = _arguments_impl)

def _hardware_bundle_impl(ctx):
    executables = {str(target.label): target[DefaultInfo].files_to_run.executable for target in ctx.attr.programs}
    own = {str(target.label): " ".join(target[_Arguments].words) for target in ctx.attr.programs}
    lines = []
    for line in ctx.attr.lines:
        suite, label, seconds, env, args = line.split("|")
        program = executables[label]
        args = own[label] if args == "-" else args
        lines.append("program|%s|%s|%s|%s|%s|%s" % (suite, program.path, program.short_path, seconds, env, args))
    data = depset(transitive = [target[DefaultInfo].default_runfiles.files for target in ctx.attr.programs])
    programs = {program.path: None for program in executables.values()}
    for file in data.to_list():
        if file.path not in programs:
            lines.append("data||%s|%s|||" % (file.path, file.short_path))

    manifest = ctx.actions.declare_file(ctx.label.name + ".manifest")
    ctx.actions.write(manifest, "\n".join(lines) + "\n")
    output = ctx.actions.declare_file(ctx.label.name + ".tar.gz")
    ctx.actions.run(
        executable = ctx.executable._pack,
        arguments = [manifest.path, ctx.file._run.path, output.path],
        inputs = depset([manifest, ctx.file._run] + executables.values(), transitive = [data]),
        outputs = [output],
        mnemonic = "HardwareBundle",
        progress_message = "Packing %s" % output.short_path,
        use_default_shell_env = True,
    )
    return DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output]))

_hardware_bundle = rule(
    implementation = _hardware_bundle_impl,
    attrs = {
        "programs": attr.label_list(aspects = [_arguments]),
        "lines": attr.string_list(),
        "_pack": attr.label(default = "//tests/hardware:pack.sh", executable = True, cfg = "host", allow_single_file = True),
        "_run": attr.label(default = "//tests/hardware:run.sh", allow_single_file = True),
    },
)

def hardware_bundle(name, programs, **kwargs):
    """Packs `programs`, a list of program() of programs.bzl, into `name`.tar.gz."""
    _hardware_bundle(
        name = name,
        testonly = True,
        programs = {program.label: None for program in programs}.keys(),
        lines = ["%s|%s|%d|%s|%s" % (p.suite, p.label, p.seconds, p.env, "-" if p.args == None else p.args) for p in programs],
        **kwargs
    )
