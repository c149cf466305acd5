/* What each process has taken of each device, where other processes can read it: a real driver
 * knows of all of them. A file for each process in the folder that CUDASIM_SHARED names. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

#include "account.h"

static const char *folder(void)
{
    const char *name = getenv("CUDASIM_SHARED");
    return name && *name ? name : NULL;
}

/* The account of this process, which a forked child does not share with its parent. */
struct account *own_account(void)
{
    static struct account *account;
    static pid_t owner;
    if (!folder() || owner == getpid())
        return account;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder(), (int)getpid());
    account = NULL;
    owner = getpid();
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return NULL;
    if (ftruncate(file, sizeof *account) == 0) {
        void *place = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        account = place == MAP_FAILED ? NULL : place;
    }
    close(file);
    return account;
}

void share_used(int device)
{
    struct account *account = own_account();
    if (account)
        __atomic_store_n(&account->used[sim_gpu_of(device)], sim_used(device), __ATOMIC_RELAXED);
}

static uint64_t used_by(const char *process, int gpu)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(), process);
    struct account account = { 0 };
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t whole = read(file, &account, sizeof account);
    close(file);
    if (whole != sizeof account || account.state == STATE_CHECKPOINTED)
        return 0;
    return account.used[gpu];
}

/* What this process has taken of a GPU. */
static uint64_t own_use(int gpu)
{
    for (int device = 0; device < sim_device_count(); device++)
        if (sim_gpu_of(device) == gpu)
            return sim_used(device);
    return 0;
}

EXPORT int sim_users(int gpu, struct sim_user *out, int room)
{
    if (!folder()) {
        if (room > 0)
            out[0] = (struct sim_user){ getpid(), own_use(gpu) };
        return 1;
    }
    DIR *processes = opendir(folder());
    if (!processes)
        return 0;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(processes));) {
        int pid = atoi(entry->d_name);
        if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH))
            continue;
        uint64_t used = used_by(entry->d_name, gpu);
        if (used == 0)
            continue;
        if (count < room)
            out[count] = (struct sim_user){ pid, used };
        count++;
    }
    closedir(processes);
    return count;
}
