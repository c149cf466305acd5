/* What the files of libcudart share among themselves. */
#pragma once

#include "driver.h"
#include "simulation.h"

/* Keeps an error for cudaGetLastError and hands it on. */
int report(int error);

/* Gives the calling thread the context of its device, as every runtime call does that needs one. */
void bind_context(void);
