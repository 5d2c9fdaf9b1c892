#include "device/image.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"

/* The header of a fat binary: what follows it is `bytes` long. */
typedef struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
} fatbin_header;
#define FATBIN_MAGIC 0xba55ed50u

static muster_status cut_short(const char *name, const char *what, size_t bytes, muster_error *error) {
    return mu_fail(error, MUSTER_PROGRAM_INVALID, "program %.64s: the image of %zu bytes is cut short or damaged (%s)",
                   name, bytes, what);
}

/* [offset, offset + count * size) within `bytes`. */
static bool within(uint64_t offset, uint64_t count, uint64_t size, size_t bytes) {
    uint64_t length, end;
    return !__builtin_mul_overflow(count, size, &length) && !__builtin_add_overflow(offset, length, &end) &&
           end <= bytes;
}

static muster_status check_elf(const unsigned char *image, size_t bytes, const char *name, muster_error *error) {
    Elf64_Ehdr header;
    if (bytes < sizeof header) return cut_short(name, "ELF header", bytes, error);
    memcpy(&header, image, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64)
        return mu_fail(error, MUSTER_PROGRAM_INVALID, "program %.64s: a 32-bit cubin; build it for 64 bits", name);
    if (header.e_machine != EM_CUDA)
        return mu_fail(error, MUSTER_PROGRAM_INVALID,
                       "program %.64s: an ELF image for machine %d, not for a GPU (%d); give PTX or a cubin", name,
                       (int)header.e_machine, (int)EM_CUDA);
    if (header.e_phnum &&
        (header.e_phentsize < sizeof(Elf64_Phdr) || !within(header.e_phoff, header.e_phnum, header.e_phentsize, bytes)))
        return cut_short(name, "program headers", bytes, error);
    if (header.e_shnum == 0) return cut_short(name, "no sections", bytes, error);
    if (header.e_shentsize < sizeof(Elf64_Shdr) || !within(header.e_shoff, header.e_shnum, header.e_shentsize, bytes))
        return cut_short(name, "section headers", bytes, error);
    if (header.e_shstrndx >= header.e_shnum) return cut_short(name, "section names", bytes, error);
    for (unsigned i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + (size_t)i * header.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS && !within(section.sh_offset, 1, section.sh_size, bytes))
            return cut_short(name, "a section", bytes, error);
    }
    return MUSTER_OK;
}

static muster_status check_fatbin(const unsigned char *image, size_t bytes, const char *name, muster_error *error) {
    fatbin_header header;
    if (bytes < sizeof header) return cut_short(name, "fatbin header", bytes, error);
    memcpy(&header, image, sizeof header);
    if (header.header_bytes < sizeof header || !within(header.header_bytes, 1, header.bytes, bytes))
        return cut_short(name, "fatbin contents", bytes, error);
    return MUSTER_OK;
}

/* The simulator's own: a magic, 8 bytes, the length of the text that follows and is terminated (device/sim/). */
static const char simulated_magic[16] = "\x7fMUSTER-SIM-BIN";
enum { SIMULATED_LENGTH_AT = 24, SIMULATED_HEADER = 32 };

static muster_status check_simulated(const unsigned char *image, size_t bytes, const char *name, muster_error *error) {
    uint64_t text_bytes;
    if (bytes < SIMULATED_HEADER) return cut_short(name, "header", bytes, error);
    memcpy(&text_bytes, image + SIMULATED_LENGTH_AT, sizeof text_bytes);
    if (!within(SIMULATED_HEADER + 1, 1, text_bytes, bytes)) return cut_short(name, "text", bytes, error);
    return MUSTER_OK;
}

static muster_status check_text(const char *text, size_t bytes, const char *name, muster_error *error) {
    while (bytes > 0 && text[bytes - 1] == '\0') bytes--;
    if (bytes == 0) return mu_fail(error, MUSTER_PROGRAM_INVALID, "program %.64s is empty; give PTX or a cubin", name);
    const char *nul = memchr(text, '\0', bytes);
    if (nul)
        return mu_fail(error, MUSTER_PROGRAM_INVALID,
                       "program %.64s: byte %zu of %zu is NUL, so this is neither PTX text nor a cubin or fatbin", name,
                       (size_t)(nul - text), bytes);
    return MUSTER_OK;
}

muster_status mu_image_classify(const void *image, size_t bytes, const char *name, mu_image_kind *kind,
                                muster_error *error) {
    muster_status status;
    mu_image_kind found;
    uint32_t magic = 0;
    if (bytes >= sizeof magic) memcpy(&magic, image, sizeof magic);
    if (bytes >= SELFMAG && memcmp(image, ELFMAG, SELFMAG) == 0) {
        found = MU_IMAGE_CUBIN;
        status = check_elf(image, bytes, name, error);
    } else if (magic == FATBIN_MAGIC) {
        found = MU_IMAGE_FATBIN;
        status = check_fatbin(image, bytes, name, error);
    } else if (bytes >= sizeof simulated_magic && memcmp(image, simulated_magic, sizeof simulated_magic) == 0) {
        found = MU_IMAGE_SIMULATED;
        status = check_simulated(image, bytes, name, error);
    } else {
        found = MU_IMAGE_PTX;
        status = check_text(image, bytes, name, error);
    }
    if (!status) *kind = found;
    return status;
}
