/* What the environment asks for. README.md lists the variables. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

static struct settings current = {
    .gpus = 1,
    .devices = 1,
    .capacity = (size_t)16 << 30,
    .compute_capability = 80,
};
static FILE *trace_file;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static unsigned long number(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoul(text, NULL, 10) : otherwise;
}

/* "16g", "512m", "4k" or plain bytes. */
static size_t bytes(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    char *unit;
    double value = strtod(text, &unit);
    switch (*unit) {
    case 'k': case 'K': value *= 1 << 10; break;
    case 'm': case 'M': value *= 1 << 20; break;
    case 'g': case 'G': value *= 1 << 30; break;
    }
    return (size_t)value;
}

/* The GPU that an entry of CUDA_VISIBLE_DEVICES names, -1 for none: an index, or the beginning of
 * a UUID as nvidia-smi writes it. */
static int gpu_named(const char *entry, int gpus)
{
    unsigned first;
    if (sscanf(entry, "GPU-%2x", &first) == 1)
        return first < (unsigned)gpus ? (int)first : -1;
    char *end;
    long index = strtol(entry, &end, 10);
    return end == entry || index < 0 || index >= gpus ? -1 : (int)index;
}

/* Reads CUDA_VISIBLE_DEVICES as the driver does: up to the first entry that names no GPU. */
static void show_devices(int gpus)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    current.gpus = current.devices = gpus;
    for (int gpu = 0; gpu < gpus; gpu++)
        current.gpu_of[gpu] = gpu;
    if (!text)
        return;
    for (current.devices = 0; *text && current.devices < gpus; text++) {
        int gpu = gpu_named(text, gpus);
        if (gpu < 0)
            break;
        current.gpu_of[current.devices++] = gpu;
        text += strcspn(text, ",");
        if (!*text)
            break;
    }
}

static void open_trace(void)
{
    const char *target = getenv("CUDASIM_TRACE");
    if (!target || !*target || strcmp(target, "0") == 0)
        return;
    trace_file = strcmp(target, "1") == 0 ? stderr : fopen(target, "a");
    if (!trace_file) {
        fprintf(stderr, "simulated CUDA: cannot append to CUDASIM_TRACE=%s\n", target);
        exit(1);
    }
    setvbuf(trace_file, NULL, _IOLBF, 0);
}

static void read_environment(void)
{
    unsigned long devices = number("CUDASIM_DEVICES", 1);
    show_devices(devices > MAX_DEVICES ? MAX_DEVICES : (int)devices);
    current.capacity = bytes("CUDASIM_MEMORY", current.capacity);
    current.context_bytes = bytes("CUDASIM_CTX_BYTES", 0);
    current.compute_capability = (int)number("CUDASIM_CC", 80);
    current.real_copies = number("CUDASIM_COPY", 0) != 0;
    current.event_delay_ns = number("CUDASIM_EVENT_US", 0) * 1000;
    current.call_us = (unsigned)number("CUDASIM_CALL_US", 0);
    current.fail_malloc = number("CUDASIM_FAIL_MALLOC", 0);
    current.fail_every = number("CUDASIM_FAIL_EVERY", 0);
    open_trace();
}

const struct settings *settings(void)
{
    pthread_once(&once, read_environment);
    return &current;
}

EXPORT bool sim_malloc_fails(void)
{
    static unsigned long calls;
    unsigned long call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    const struct settings *asked = settings();
    return call == asked->fail_malloc || (asked->fail_every && call % asked->fail_every == 0);
}

EXPORT void sim_trace(const char *format, ...)
{
    settings();
    if (!trace_file)
        return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(trace_file, "[cuda-sim %d] %s\n", (int)getpid(), line);
}
