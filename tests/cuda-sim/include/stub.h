/* What a generated function does: return STUB_RESULT, and say so once where CUDASIM_STUBS is set. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "entry.h"

static inline void announce_stub(bool *announced, const char *name)
{
    const char *asked = getenv("CUDASIM_STUBS");
    if (!*announced && asked && *asked && *asked != '0')
        fprintf(stderr, "[cuda-sim stub] %s: %s returns %d\n", STUB_LIBRARY, name, STUB_RESULT);
    *announced = true;
}

/* Weak: a hand-written function of the same name wins. `long` fills the whole return register. */
#define STUB(name)                                                                                 \
    WEAK_ENTRY(long, name, void)                                                                   \
    {                                                                                              \
        static bool announced;                                                                     \
        if (!announced)                                                                            \
            announce_stub(&announced, #name);                                                      \
        return STUB_RESULT;                                                                        \
    }
