"""embed_text: a text file as a C string."""

def embed_text(name, src, symbol):
    """Makes <name>.h, which defines `static const char symbol[]` with the text of src."""
    native.genrule(
        name = name,
        srcs = [src],
        outs = [name + ".h"],
        # Escape backslashes and quotes, then make each line a string literal of its own.
        cmd = "(echo 'static const char %s[] ='; " % symbol +
              "sed -e 's/[\\\\\"]/\\\\&/g' -e 's/.*/    \"&\\\\n\"/' $<; echo '    ;') > $@",
    )
