/* Entries of the driver's functions, in the forms that NVIDIA's libcuda has.
 *
 * ENTRY(int, cuInit, unsigned flags) { ... } defines a function. The compiled function is a hidden
 * `cuInit_body`; the exported `cuInit` is the assembly below, which ends in a jump to the body with
 * the registers and the stack as they came. Code of the driver that calls cuInit reaches the body: as
 * in NVIDIA's driver no exported function enters another. The form is chosen by a macro:
 *
 * ENTRY_TRAMPOLINE  libcuda 470 to 555: 30 bytes; a comparison of a word with a constant (10 bytes), a
 *                   conditional jump (2 bytes, at 10) and a jump out of the symbol at 12; the other branch
 *                   jumps out, too. CUDASIM_OTHER_BRANCH=1 takes it.
 * ENTRY_PUSH        libcuda 575 and later: `push %rbp`, and what a compiler puts after it.
 *
 * With neither, and on other processors than x86-64, the exported function is the compiled one. */
#pragma once

#include "export.h"

/* Wider apart than NVIDIA's, so that the fewer functions here lie on several pages, too. */
#define ENTRY_ALIGNMENT "128"

#if defined __x86_64__ && defined ENTRY_TRAMPOLINE
/* The constant takes four bytes, or the assembler would choose a shorter instruction. */
#define ENTRY_CODE(name)                                                                           \
    "    .hidden sim_entry_word\n"                                                                 \
    "    cmpl $" ENTRY_CONSTANT ", sim_entry_word(%rip)\n"                                         \
    "    je 1f\n"                                                                                  \
    "    jmp " name "_body\n"                                                                      \
    "1:  jmp " name "_body\n"                                                                      \
    "    .skip 30 - (. - " name "), 0x90\n"
#elif defined __x86_64__ && defined ENTRY_PUSH
/* Thirteen bytes of which UCX can make a copy, so that it can put its longest jump there. */
#define ENTRY_CODE(name)                                                                           \
    "    push %rbp\n"                                                                              \
    "    .cfi_def_cfa_offset 16\n"                                                                 \
    "    .cfi_offset %rbp, -16\n"                                                                  \
    "    mov %rsp, %rbp\n"                                                                         \
    "    .cfi_def_cfa_register %rbp\n"                                                             \
    "    sub $32, %rsp\n"                                                                          \
    "    mov %rdi, 8(%rsp)\n"                                                                      \
    "    leave\n"                                                                                  \
    "    .cfi_def_cfa %rsp, 8\n"                                                                   \
    "    jmp " name "_body\n"
#endif

#define ENTRY_CONSTANT "0x321cba00"
#define ENTRY_CONSTANT_NUMBER 0x321cba00

/* Name and body of a function, in a table of the linker's making. */
struct entry_body {
    const char *name;
    void *body;
};

#ifdef ENTRY_CODE
#define ENTRY_AS(binding, attributes, result, name, ...)                                           \
    __asm__(".pushsection .text.hot.entries, \"ax\", @progbits\n"                                  \
            "    " binding " " #name "\n"                                                          \
            "    .hidden " #name "_body\n"                                                         \
            "    .type " #name ", @function\n"                                                     \
            "    .balign " ENTRY_ALIGNMENT ", 0x90\n" #name ":\n"                                  \
            "    .cfi_startproc\n" ENTRY_CODE(#name) "    .cfi_endproc\n"                          \
            "    .size " #name ", . - " #name "\n"                                                 \
            "    .section .rodata.entries, \"a\", @progbits\n"                                     \
            "2:  .asciz \"" #name "\"\n"                                                           \
            "    .section sim_bodies, \"aw\", @progbits\n"                                         \
            "    .quad 2b, " #name "_body\n"                                                       \
            ".popsection\n");                                                                      \
    attributes result name(__VA_ARGS__) __asm__(#name "_body");                                    \
    attributes result name(__VA_ARGS__)
#else
#define ENTRY_AS(binding, attributes, result, name, ...) EXPORT attributes result name(__VA_ARGS__)
#endif

#define ENTRY(result, name, ...) ENTRY_AS(".globl", , result, name, __VA_ARGS__)
/* Gives way to a function of the same name that is not weak. */
#define WEAK_ENTRY(result, name, ...)                                                              \
    ENTRY_AS(".weak", __attribute__((weak)), result, name, __VA_ARGS__)

/* A function that succeeds and has nothing to write back, whatever its arguments are. */
#define ENTRY_SUCCEEDS(name)                                                                       \
    ENTRY(int, name, void)                                                                         \
    {                                                                                              \
        return 0;                                                                                  \
    }
