/* What the environment asks for. README.md lists the variables. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

static struct settings current = {
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

/* How many devices are left of `devices` by CUDA_VISIBLE_DEVICES, as the driver reads it: up to the
 * first index that does not exist. */
static int visible_devices(int devices)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text)
        return devices;
    int visible = 0;
    while (*text) {
        char *end;
        long index = strtol(text, &end, 10);
        if (end == text || index < 0 || index >= devices)
            break;
        visible++;
        if (*end != ',')
            break;
        text = end + 1;
    }
    return visible;
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
    current.devices = visible_devices(devices > MAX_DEVICES ? MAX_DEVICES : (int)devices);
    current.capacity = bytes("CUDASIM_MEMORY", current.capacity);
    current.context_bytes = bytes("CUDASIM_CTX_BYTES", 0);
    current.compute_capability = (int)number("CUDASIM_CC", 80);
    current.real_copies = number("CUDASIM_COPY", 0) != 0;
    current.event_delay_ns = number("CUDASIM_EVENT_US", 0) * 1000;
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
