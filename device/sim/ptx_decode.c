/* From mnemonic to the family that decodes it. */
#include <string.h>

#include "device/sim/ptx_parse.h"

static const ptx_mnemonic *const families[] = {
    sim_ptx_move_mnemonics,    sim_ptx_integer_mnemonics, sim_ptx_float_mnemonics,   sim_ptx_bits_mnemonics,
    sim_ptx_compare_mnemonics, sim_ptx_convert_mnemonics, sim_ptx_memory_mnemonics,  sim_ptx_atomic_mnemonics,
    sim_ptx_control_mnemonics, sim_ptx_warp_mnemonics,    sim_ptx_barrier_mnemonics,
};

void sim_ptx_decode(ptx_parser *p, ptx_source *s) {
    bool known = false;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        for (const ptx_mnemonic *m = families[f]; m->name; m++) {
            if (m->name[0] != s->name.text[0] || !sim_ptx_name_is(s->name, m->name)) continue;
            known = true;
            if (m->decode(p, s)) return;
        }
    }
    int bytes = (int)(s->name.bytes > 64 ? 64 : s->name.bytes);
    if (known) sim_ptx_bad_type(p, s, sim_ptx_peek_type(s));
    sim_ptx_error(
        p, s->line,
        "the instruction '%.*s' is not known to the simulator; use another form of the kernel or a real device", bytes,
        s->name.text);
}
