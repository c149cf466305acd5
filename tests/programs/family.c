/*
 * A family of processes that allocate: `family FOLDER VERB ...`. Each process writes what it did into
 * FOLDER/PID when it is done: "ALLOCS FREES ALLOCATED RESERVED".
 *
 * It begins when memprobe's probes are in its libraries (but for `hasty`).
 *
 *   churn GENERATIONS WIDTH BLOCKS   WIDTH processes at a time start, allocate, fork and die; then it
 *                                    writes FOLDER/over and waits for FOLDER/leave
 *   ranks COUNT BLOCKS RATE          COUNT processes, each with RATE events a second
 *   copy LIBC10 LIBCUDART BLOCKS     loads these copies, waits until they are probed, allocates
 *   hasty LIBC10 LIBCUDART BLOCKS    as copy, without waiting
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct device {
    int8_t type;
    int8_t index;
};

typedef void report_function(void *, int64_t, size_t, size_t, struct device);
typedef int malloc_function(void **, size_t);

extern report_function report __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
extern malloc_function cudaMalloc;

static const char REPORT[] = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";

static report_function *tell;
static malloc_function *get;
static const char *folder;
static size_t allocated, reserved, allocs, frees;
static uintptr_t segment;

static void fail(const char *what)
{
    perror(what);
    exit(9);
}

static void write_down(void)
{
    char path[4096], partial[4096];
    snprintf(path, sizeof path, "%s/%d", folder, getpid());
    snprintf(partial, sizeof partial, "%s/%d.partial", folder, getpid());
    FILE *file = fopen(partial, "w");
    if (!file)
        fail(partial);
    fprintf(file, "%zu %zu %zu %zu\n", allocs, frees, allocated, reserved);
    if (fclose(file) || rename(partial, path))
        fail(path);
}

/* Allocates so many blocks and gives every second one back. */
static void allocate(size_t blocks, double pause)
{
    const struct device device = {1, 0};
    static size_t place;
    if (!segment) {
        void *pointer;
        get(&pointer, 2 << 20);
        segment = (uintptr_t)pointer;
        reserved += 2 << 20;
    }
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (size_t at = 0; at < blocks; at++) {
        size_t size = 512 * (1 + at % 7);
        void *block = (void *)(segment + 512 * 8 * (place % 256) + ((place / 256) << 32));
        place++;
        allocated += size;
        allocs++;
        tell(block, (int64_t)size, allocated, reserved, device);
        if (at % 2) {
            allocated -= size;
            frees++;
            tell(block, -(int64_t)size, allocated, reserved, device);
        }
        if (pause > 0 && at % 64 == 63) {
            next.tv_nsec += (long)(pause * 64e9);
            next.tv_sec += next.tv_nsec / 1000000000;
            next.tv_nsec %= 1000000000;
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        }
    }
}

static pid_t child(void)
{
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    return pid;
}

/* One process of the churn: a child of its own, itself, and every third time another program. */
static void live(int number, size_t blocks, char **argv)
{
    pid_t pid = child();
    if (pid == 0) {
        allocate(blocks / 2 + (size_t)number % 5, 0);
        write_down();
        _exit(0);
    }
    if (number % 3 == 0) {
        waitpid(pid, NULL, 0);
        char text[32];
        snprintf(text, sizeof text, "%zu", blocks);
        char *words[] = {argv[0], (char *)folder, "alone", text, NULL};
        execv("/proc/self/exe", words);
        fail("execv");
    }
    allocate(blocks, 0);
    write_down();
    waitpid(pid, NULL, 0);
    _exit(0);
}

static void churn(int generations, int width, size_t blocks, char **argv)
{
    int running = 0;
    for (int number = 0; number < generations; number++) {
        if (child() == 0)
            live(number, blocks, argv);
        if (++running == width) {
            wait(NULL);
            running--;
        }
    }
    while (wait(NULL) > 0)
        ;
}

/* Says that the churn is over and stays until it is told to leave. */
static void stay(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/over", folder);
    FILE *file = fopen(path, "w");
    if (!file || fclose(file))
        fail(path);
    snprintf(path, sizeof path, "%s/leave", folder);
    while (access(path, F_OK))
        usleep(1000);
}

static void ranks(int count, size_t blocks, double rate)
{
    for (int rank = 0; rank < count; rank++) {
        if (child() == 0) {
            /* A block is one and a half events. */
            allocate(blocks, 1.5 / rate);
            write_down();
            _exit(0);
        }
    }
    while (wait(NULL) > 0)
        ;
}

/* Waits until the code of a function is no longer that of its file: a breakpoint is in it. */
static void wait_for_probe(void *function)
{
    Dl_info info;
    unsigned char stored[64];
    if (!dladdr(function, &info))
        fail("dladdr");
    int file = open(info.dli_fname, O_RDONLY);
    /* Built so that addresses in the file are offsets. */
    off_t offset = (char *)function - (char *)info.dli_fbase;
    ssize_t got = pread(file, stored, sizeof stored, offset);
    if (got <= 0)
        fail(info.dli_fname);
    close(file);
    if (memcmp(stored, function, (size_t)got))
        return;
    while (memcmp(stored, function, (size_t)got) == 0)
        usleep(1000);
    /* The program behind a new breakpoint is put there by a second system call. */
    usleep(300000);
}

static void use_copy(const char *c10, const char *cudart, int patient)
{
    void *first = dlopen(cudart, RTLD_NOW | RTLD_LOCAL);
    void *second = dlopen(c10, RTLD_NOW | RTLD_LOCAL);
    if (!first || !second) {
        fprintf(stderr, "%s\n", dlerror());
        exit(9);
    }
    get = (malloc_function *)dlsym(first, "cudaMalloc");
    tell = (report_function *)dlsym(second, REPORT);
    if (patient) {
        wait_for_probe((void *)get);
        wait_for_probe((void *)tell);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    folder = argv[1];
    tell = report;
    get = cudaMalloc;
    const char *verb = argv[2];
    if (strcmp(verb, "hasty")) {
        /* Whoever comes first on a machine is looked at; whoever comes later need not be. */
        wait_for_probe((void *)get);
        wait_for_probe((void *)tell);
    }
    if (!strcmp(verb, "churn") && argc == 6) {
        churn(atoi(argv[3]), atoi(argv[4]), strtoul(argv[5], NULL, 10), argv);
        stay();
    } else if (!strcmp(verb, "ranks") && argc == 6) {
        ranks(atoi(argv[3]), strtoul(argv[4], NULL, 10), atof(argv[5]));
    } else if (!strcmp(verb, "alone") && argc == 4) {
        allocate(strtoul(argv[3], NULL, 10), 0);
        write_down();
    } else if ((!strcmp(verb, "copy") || !strcmp(verb, "hasty")) && argc == 6) {
        int patient = !strcmp(verb, "copy");
        size_t blocks = strtoul(argv[5], NULL, 10);
        /* The first copy is used too: its events and those of the second are one story. */
        if (patient)
            allocate(blocks, 0);
        use_copy(argv[3], argv[4], patient);
        allocate(blocks, 0);
        write_down();
    } else {
        return 2;
    }
    return 0;
}
