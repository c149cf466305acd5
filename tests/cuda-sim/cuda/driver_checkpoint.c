/* Driver API: suspends another process by its number, through the account that it shares.
 *
 * A file `checkpoint` in the folder of CUDASIM_SHARED makes steps fail. Each line is STEP=WHAT, with a step of `state`,
 * `lock`, `checkpoint`, `restore`, `unlock`:
 *   a number    the call returns it and does nothing
 *   hang        it does nothing and does not return while the line is there
 *   done-hang   as `hang`, after the step was made
 *   breaks      the process is in the state FAILED; the call returns 999
 *   kills       the process ends by SIGKILL; the call returns 304 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "account.h"
#include "driver.h"
#include "state.h"

static const char *folder(void)
{
    const char *name = getenv("CUDASIM_SHARED");
    return name && *name ? name : "/nonexistent";
}

/* What the file says about a step; "" for nothing. */
static void trouble_of(const char *step, char out[32])
{
    char path[4096], line[128];
    snprintf(path, sizeof path, "%s/checkpoint", folder());
    *out = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    size_t length = strlen(step);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, step, length) == 0 && line[length] == '=')
            snprintf(out, 32, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
    fclose(file);
}

static void hang(const char *step, const char *how)
{
    char now[32];
    do {
        usleep(5000);
        trouble_of(step, now);
    } while (strcmp(now, how) == 0);
}

/* The account of another process, to be unmapped; NULL where it uses no CUDA. */
static struct account *account_of(int pid)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder(), pid);
    int file = kill(pid, 0) == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return NULL;
    void *place = mmap(NULL, sizeof(struct account), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return place == MAP_FAILED ? NULL : place;
}

/* CUcheckpointLockArgs, cuda.h */
struct lock_arguments {
    unsigned timeout_ms, reserved0;
    uint64_t reserved1[7];
};

static bool is_zero(const void *bytes, size_t size)
{
    for (size_t at = 0; at < size; at++)
        if (((const char *)bytes)[at])
            return false;
    return true;
}

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void set_state(struct account *account, enum process_state state)
{
    __atomic_store_n(&account->state, state, __ATOMIC_SEQ_CST);
}

/* Waits until no call is in progress. */
static int make_lock(struct account *account, unsigned timeout_ms)
{
    set_state(account, STATE_LOCKED);
    for (unsigned waited = 0; load(&account->calls) > 0; waited++) {
        if (timeout_ms && waited >= timeout_ms) {
            set_state(account, STATE_RUNNING);
            return CUDA_NOT_READY;
        }
        usleep(1000);
    }
    return CUDA_OK;
}

/* The memory of the others must leave room for this one's. */
static int make_restore(struct account *account)
{
    for (int gpu = 0; gpu < MAX_DEVICES && gpu < sim_gpu_count(); gpu++) {
        struct sim_user users[64];
        int count = sim_users(gpu, users, 64);
        uint64_t used = account->used[gpu];
        for (int at = 0; at < count && at < 64; at++)
            used += users[at].used;
        if (account->used[gpu] && used > sim_capacity(gpu))
            return CUDA_OUT_OF_MEMORY;
    }
    set_state(account, STATE_LOCKED);
    return CUDA_OK;
}

enum step { LOCK, CHECKPOINT, RESTORE, UNLOCK };

static int make(struct account *account, enum step step, const struct lock_arguments *arguments)
{
    static const enum process_state needed[] = { STATE_RUNNING, STATE_LOCKED, STATE_CHECKPOINTED, STATE_LOCKED };
    if (load(&account->state) != (uint32_t)needed[step])
        return CUDA_ILLEGAL_STATE;
    switch (step) {
    case LOCK: return make_lock(account, arguments ? arguments->timeout_ms : 0);
    case CHECKPOINT: set_state(account, STATE_CHECKPOINTED); break;
    case RESTORE: return make_restore(account);
    case UNLOCK: set_state(account, STATE_RUNNING); break;
    }
    return CUDA_OK;
}

static int call(int pid, enum step step, const struct lock_arguments *arguments)
{
    static const char *const names[] = { "lock", "checkpoint", "restore", "unlock" };
    size_t first = step == LOCK ? sizeof arguments->timeout_ms : 0;
    if (arguments && !is_zero((const char *)arguments + first, sizeof *arguments - first))
        return CUDA_INVALID_VALUE;
    struct account *account = account_of(pid);
    if (!account)
        return CUDA_INVALID_VALUE;
    char trouble[32];
    trouble_of(names[step], trouble);
    sim_trace("cuCheckpointProcess %s %d, trouble \"%s\"", names[step], pid, trouble);
    int result = atoi(trouble);
    if (strcmp(trouble, "hang") == 0)
        hang(names[step], trouble);
    if (strcmp(trouble, "breaks") == 0) {
        set_state(account, STATE_FAILED);
        result = CUDA_UNKNOWN;
    } else if (strcmp(trouble, "kills") == 0) {
        kill(pid, SIGKILL);
        result = CUDA_OPERATING_SYSTEM;
    } else if (result == 0) {
        result = make(account, step, arguments);
    }
    if (strcmp(trouble, "done-hang") == 0)
        hang(names[step], trouble);
    munmap(account, sizeof *account);
    return result;
}

ENTRY(int, cuCheckpointProcessGetState, int pid, int *state)
{
    char trouble[32];
    trouble_of("state", trouble);
    if (strcmp(trouble, "hang") == 0)
        hang("state", trouble);
    struct account *account = account_of(pid);
    if (!account)
        return CUDA_INVALID_VALUE;
    *state = (int)load(&account->state);
    munmap(account, sizeof *account);
    return atoi(trouble);
}

ENTRY(int, cuCheckpointProcessLock, int pid, const struct lock_arguments *arguments)
{
    return call(pid, LOCK, arguments);
}

ENTRY(int, cuCheckpointProcessCheckpoint, int pid, const void *arguments)
{
    return call(pid, CHECKPOINT, arguments);
}

ENTRY(int, cuCheckpointProcessRestore, int pid, const void *arguments)
{
    return call(pid, RESTORE, arguments);
}

ENTRY(int, cuCheckpointProcessUnlock, int pid, const void *arguments)
{
    return call(pid, UNLOCK, arguments);
}

/* Nested calls of a thread pass: the outermost one was let in. */
static __thread int depth;

void begin_call(void)
{
    struct account *account = depth++ == 0 ? own_account() : NULL;
    while (account) {
        __atomic_add_fetch(&account->calls, 1, __ATOMIC_SEQ_CST);
        if (load(&account->state) == STATE_RUNNING) {
            usleep(settings()->call_us);
            return;
        }
        __atomic_sub_fetch(&account->calls, 1, __ATOMIC_SEQ_CST);
        usleep(1000);
    }
}

void end_call(void)
{
    struct account *account = --depth == 0 ? own_account() : NULL;
    if (account)
        __atomic_sub_fetch(&account->calls, 1, __ATOMIC_SEQ_CST);
}
