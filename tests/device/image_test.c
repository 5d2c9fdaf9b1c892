/* Device code judged by its bytes: nothing is accepted whose headers point outside it. */
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/image.h"

static muster_status judge(const void *image, size_t bytes, mu_image_kind *kind) {
    muster_error error = {0};
    /* An exact copy, so that the sanitizers see a byte read beyond. */
    void *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, image, bytes);
    muster_status status = mu_image_classify(copy, bytes, "mine", kind, &error);
    free(copy);
    if (status) assert_non_null(strstr(error.message, "mine"));
    return status;
}

static void accept(const void *image, size_t bytes, mu_image_kind expected) {
    mu_image_kind kind = 0;
    assert_int_equal(judge(image, bytes, &kind), MUSTER_OK);
    assert_int_equal(kind, expected);
}

static void refuse(const void *image, size_t bytes) {
    mu_image_kind kind = 99;
    assert_int_equal(judge(image, bytes, &kind), MUSTER_PROGRAM_INVALID);
    assert_int_equal(kind, 99);
}

static void test_text_is_ptx(void **state) {
    (void)state;
    accept(".version 7.0\n", 13, MU_IMAGE_PTX);
    accept(".version 7.0\n\0\0\0", 16, MU_IMAGE_PTX);
    accept("x", 1, MU_IMAGE_PTX);
    refuse("", 0);
    refuse("\0", 1);
    refuse("a\0b", 3);
}

/* A small ELF image for a GPU: header, one program header, three sections, their contents. */
typedef struct small_elf {
    Elf64_Ehdr header;
    Elf64_Phdr program;
    Elf64_Shdr sections[3];
    char contents[64];
} small_elf;

static small_elf make_elf(void) {
    small_elf elf;
    memset(&elf, 0, sizeof elf);
    memcpy(elf.header.e_ident, ELFMAG, SELFMAG);
    elf.header.e_ident[EI_CLASS] = ELFCLASS64;
    elf.header.e_machine = EM_CUDA;
    elf.header.e_phoff = offsetof(small_elf, program);
    elf.header.e_phnum = 1;
    elf.header.e_phentsize = sizeof(Elf64_Phdr);
    elf.header.e_shoff = offsetof(small_elf, sections);
    elf.header.e_shnum = 3;
    elf.header.e_shentsize = sizeof(Elf64_Shdr);
    elf.header.e_shstrndx = 1;
    elf.sections[1].sh_type = SHT_STRTAB;
    elf.sections[1].sh_offset = offsetof(small_elf, contents);
    elf.sections[1].sh_size = 64;
    elf.sections[2].sh_type = SHT_NOBITS; /* takes no room in the image */
    elf.sections[2].sh_offset = UINT64_MAX;
    elf.sections[2].sh_size = UINT64_MAX;
    return elf;
}

static void test_cubin_is_accepted_whole_only(void **state) {
    (void)state;
    small_elf elf = make_elf();
    accept(&elf, sizeof elf, MU_IMAGE_CUBIN);
    for (size_t bytes = SELFMAG; bytes < sizeof elf; bytes++) refuse(&elf, bytes);
}

static void test_cubin_headers_must_stay_inside(void **state) {
    (void)state;
#define DAMAGE(statement)                                                                                              \
    do {                                                                                                               \
        small_elf elf = make_elf();                                                                                    \
        statement;                                                                                                     \
        refuse(&elf, sizeof elf);                                                                                      \
    } while (0)
    DAMAGE(elf.header.e_ident[EI_CLASS] = ELFCLASS32);
    DAMAGE(elf.header.e_machine = EM_X86_64);
    DAMAGE(elf.header.e_shnum = 0);
    DAMAGE(elf.header.e_shnum = UINT16_MAX);
    DAMAGE(elf.header.e_shentsize = 1);
    DAMAGE(elf.header.e_shoff = UINT64_MAX);
    DAMAGE(elf.header.e_shoff = sizeof elf);
    DAMAGE(elf.header.e_shstrndx = 3);
    DAMAGE(elf.header.e_phoff = UINT64_MAX - 8);
    DAMAGE(elf.header.e_phentsize = 8);
    DAMAGE(elf.header.e_phnum = UINT16_MAX);
    DAMAGE(elf.sections[1].sh_offset = UINT64_MAX);
    DAMAGE(elf.sections[1].sh_size = UINT64_MAX);
    DAMAGE(elf.sections[1].sh_size = 65);
}

static void test_random_damage_never_reads_outside(void **state) {
    (void)state;
    uint64_t random = 31;
    for (int i = 0; i < 20000; i++) {
        small_elf elf = make_elf();
        mu_image_kind kind;
        for (int j = 0; j < 4; j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            ((unsigned char *)&elf)[SELFMAG + (random >> 33) % (sizeof elf - SELFMAG)] = (unsigned char)(random >> 25);
        }
        (void)judge(&elf, sizeof elf - (random >> 60), &kind);
    }
}

static void test_fatbin_is_accepted_whole_only(void **state) {
    (void)state;
    unsigned char image[64] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 48};
    accept(image, 64, MU_IMAGE_FATBIN);
    for (size_t bytes = 4; bytes < 64; bytes++) refuse(image, bytes);
    image[6] = 15; /* a header shorter than its fields */
    refuse(image, 64);
    memset(image + 8, 0xff, 8);
    image[6] = 16;
    refuse(image, 64);
}

static void test_simulated_image_is_accepted_whole_only(void **state) {
    (void)state;
    unsigned char image[40] = "\x7fMUSTER-SIM-BIN";
    image[24] = 7; /* bytes of text, and its terminator */
    accept(image, 40, MU_IMAGE_SIMULATED);
    for (size_t bytes = 16; bytes < 40; bytes++) refuse(image, bytes);
    memset(image + 24, 0xff, 8);
    refuse(image, 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_ptx),
        cmocka_unit_test(test_cubin_is_accepted_whole_only),
        cmocka_unit_test(test_cubin_headers_must_stay_inside),
        cmocka_unit_test(test_random_damage_never_reads_outside),
        cmocka_unit_test(test_fatbin_is_accepted_whole_only),
        cmocka_unit_test(test_simulated_image_is_accepted_whole_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
