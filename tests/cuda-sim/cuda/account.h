/* What a process lets others know, and change: a file for each process in the folder of CUDASIM_SHARED. */
#pragma once

#include <stdint.h>

#include "simulation.h"

/* CUprocessState, cuda.h */
enum process_state {
    STATE_RUNNING = 0,
    STATE_LOCKED = 1,
    STATE_CHECKPOINTED = 2,
    STATE_FAILED = 3,
};

struct account {
    /* By GPU. */
    uint64_t used[MAX_DEVICES];
    /* An enum process_state. Calls of CUDA wait unless the process runs. */
    uint32_t state;
    /* Calls that are in progress. */
    uint32_t calls;
};

/* That of this process; NULL where CUDASIM_SHARED names no folder. */
struct account *own_account(void);
