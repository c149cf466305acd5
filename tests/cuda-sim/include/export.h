/* How the libraries of the simulation publish their functions. */
#pragma once

#define EXPORT __attribute__((visibility("default")))

/* A function that succeeds and has nothing to write back, whatever its arguments are. */
#define SUCCEEDS(name)                                                                             \
    EXPORT int name(void)                                                                          \
    {                                                                                              \
        return 0;                                                                                  \
    }
