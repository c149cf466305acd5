/* Streams and events. Work takes no time; only an event can be made to take some. */
#include <stdlib.h>
#include <time.h>

#include "state.h"

static struct sim_stream default_streams[MAX_DEVICES][3];

EXPORT struct sim_stream *sim_stream_of(void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    if (number > 2)
        return handle;
    int device = sim_current_device();
    struct sim_stream *stream = &default_streams[device][number];
    stream->device = device;
    stream->id = number;
    return stream;
}

EXPORT struct sim_stream *sim_stream_create(unsigned flags, int priority)
{
    static uint64_t last_id = 16;
    struct sim_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        abort();
    stream->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
    stream->device = sim_current_device();
    stream->flags = flags;
    stream->priority = priority;
    return stream;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

EXPORT void sim_event_record(struct sim_event *event)
{
    event->recorded_ns = now_ns();
    event->ready_ns = event->recorded_ns + settings()->event_delay_ns;
}

EXPORT bool sim_event_ready(const struct sim_event *event)
{
    return event->ready_ns <= now_ns();
}

EXPORT void sim_event_wait(const struct sim_event *event)
{
    struct timespec until = {
        .tv_sec = (time_t)(event->ready_ns / 1000000000u),
        .tv_nsec = (long)(event->ready_ns % 1000000000u),
    };
    while (!sim_event_ready(event))
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}
