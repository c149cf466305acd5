/* Calls from one file of the driver to a function of another file: to its body, as no exported function of
 * NVIDIA's driver enters another. */
#pragma once

#include "entry.h"

#ifdef ENTRY_CODE
#define BODY(name) __asm__(#name "_body")
#else
#define BODY(name)
#endif
