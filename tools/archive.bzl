"""static_archive: one archive of a library and of all it stands on, for applications built without Bazel."""

def _static_archive_impl(ctx):
    objects = []
    for input in ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list():
        for library in input.libraries:
            objects.extend(library.pic_objects or library.objects)
    output = ctx.actions.declare_file(ctx.attr.archive)
    arguments = ctx.actions.args()
    arguments.use_param_file("@%s", use_always = True)
    arguments.set_param_file_format("multiline")
    arguments.add_all(objects)
    ctx.actions.run_shell(
        command = 'rm -f "$1" && ar qcsD "$1" "$2"',
        arguments = [output.path, arguments],
        inputs = objects,
        outputs = [output],
        mnemonic = "StaticArchive",
        use_default_shell_env = True,
    )
    return DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output]))

static_archive = rule(
    implementation = _static_archive_impl,
    attrs = {
        "library": attr.label(providers = [CcInfo], mandatory = True),
        "archive": attr.string(mandatory = True),
    },
)
