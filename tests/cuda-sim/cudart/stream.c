/* Runtime API: streams, events, and graphs captured from streams. A graph records nothing. */
#include <stdlib.h>

#include "runtime.h"
#include "toolkit.h"

static int create_stream(struct sim_stream **out, unsigned flags, int priority)
{
    bind_context();
    *out = sim_stream_create(flags, priority);
    return CUDA_OK;
}

EXPORT int cudaStreamCreate(struct sim_stream **out)
{
    return create_stream(out, 0, 0);
}

EXPORT int cudaStreamCreateWithFlags(struct sim_stream **out, unsigned flags)
{
    return create_stream(out, flags, 0);
}

EXPORT int cudaStreamCreateWithPriority(struct sim_stream **out, unsigned flags, int priority)
{
    return create_stream(out, flags, priority);
}

EXPORT int cudaStreamDestroy(void *handle)
{
    if ((uintptr_t)handle > 2)
        free(handle);
    return CUDA_OK;
}

EXPORT int cudaStreamGetPriority(void *handle, int *priority)
{
    *priority = sim_stream_of(handle)->priority;
    return CUDA_OK;
}

SUCCEEDS(cudaStreamQuery)
SUCCEEDS(cudaStreamSynchronize)
SUCCEEDS(cudaStreamWaitEvent)

EXPORT int cudaLaunchHostFunc(void *, void (*function)(void *), void *argument)
{
    function(argument);
    return CUDA_OK;
}

EXPORT int cudaStreamAddCallback(void *handle, void (*function)(void *, int, void *), void *argument,
                                 unsigned)
{
    function(handle, CUDA_OK, argument);
    return CUDA_OK;
}

/* ---- events */

EXPORT int cudaEventCreateWithFlags(struct sim_event **out, unsigned)
{
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_OK : report(CUDA_OUT_OF_MEMORY);
}

EXPORT int cudaEventCreate(struct sim_event **out)
{
    return cudaEventCreateWithFlags(out, 0);
}

EXPORT int cudaEventDestroy(struct sim_event *event)
{
    free(event);
    return CUDA_OK;
}

EXPORT int cudaEventRecord(struct sim_event *event, void *)
{
    sim_event_record(event);
    return CUDA_OK;
}

EXPORT int cudaEventRecordWithFlags(struct sim_event *event, void *, unsigned)
{
    sim_event_record(event);
    return CUDA_OK;
}

EXPORT int cudaEventQuery(const struct sim_event *event)
{
    return sim_event_ready(event) ? CUDA_OK : report(CUDA_NOT_READY);
}

EXPORT int cudaEventSynchronize(const struct sim_event *event)
{
    sim_event_wait(event);
    return CUDA_OK;
}

EXPORT int cudaEventElapsedTime(float *milliseconds, const struct sim_event *from,
                                const struct sim_event *to)
{
    *milliseconds = (float)((double)(int64_t)(to->recorded_ns - from->recorded_ns) / 1e6);
    return CUDA_OK;
}

/* ---- capture */

EXPORT int cudaStreamBeginCapture(void *handle, int)
{
    static uint64_t last_capture;
    struct sim_stream *stream = sim_stream_of(handle);
    stream->capturing = true;
    stream->capture_id = __atomic_add_fetch(&last_capture, 1, __ATOMIC_RELAXED);
    stream->graph = malloc(1);
    return CUDA_OK;
}

EXPORT int cudaStreamEndCapture(void *handle, void **graph)
{
    struct sim_stream *stream = sim_stream_of(handle);
    stream->capturing = false;
    *graph = stream->graph;
    return CUDA_OK;
}

EXPORT int cudaStreamIsCapturing(void *handle, int *status)
{
    *status = sim_stream_of(handle)->capturing ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return CUDA_OK;
}

static int capture_info(void *handle, int *status, unsigned long long *id, void **graph,
                        const void **dependencies, size_t *count)
{
    const struct sim_stream *stream = sim_stream_of(handle);
    *status = stream->capturing ? CAPTURE_ACTIVE : CAPTURE_NONE;
    if (id)
        *id = stream->capture_id;
    if (graph)
        *graph = stream->graph;
    if (dependencies)
        *dependencies = NULL;
    if (count)
        *count = 0;
    return CUDA_OK;
}

#if CUDA_MAJOR < 13
EXPORT int cudaStreamGetCaptureInfo(void *handle, int *status, unsigned long long *id)
{
    return capture_info(handle, status, id, NULL, NULL, NULL);
}

EXPORT int cudaStreamGetCaptureInfo_v2(void *handle, int *status, unsigned long long *id,
                                       void **graph, const void **dependencies, size_t *count)
{
    return capture_info(handle, status, id, graph, dependencies, count);
}
#endif

#if CUDA_MAJOR > 11
EXPORT int NEWEST(cudaStreamGetCaptureInfo, _v3)(void *handle, int *status, unsigned long long *id,
                                                 void **graph, const void **dependencies,
                                                 const void **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return capture_info(handle, status, id, graph, dependencies, count);
}
#endif

EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int current;
    int previous = current;
    current = *mode;
    *mode = previous;
    return CUDA_OK;
}

SUCCEEDS(cudaStreamUpdateCaptureDependencies)
SUCCEEDS(cudaStreamUpdateCaptureDependencies_v2)

/* ---- graphs */

/* One node: PyTorch warns of a graph without any. */
EXPORT int cudaGraphGetNodes(void *, void **nodes, size_t *count)
{
    static char node;
    if (nodes)
        nodes[0] = &node;
    *count = 1;
    return CUDA_OK;
}

#if CUDA_MAJOR < 13
EXPORT int cudaGraphNodeGetDependencies(void *, void **, size_t *count)
{
    *count = 0;
    return CUDA_OK;
}
#endif

#if CUDA_MAJOR > 11
EXPORT int NEWEST(cudaGraphNodeGetDependencies, _v2)(void *, void **, void *, size_t *count)
{
    *count = 0;
    return CUDA_OK;
}
#endif

EXPORT int cudaGraphInstantiate(void **out, void *, unsigned long long)
{
    *out = malloc(1);
    return CUDA_OK;
}

EXPORT int cudaGraphInstantiateWithFlags(void **out, void *, unsigned long long)
{
    *out = malloc(1);
    return CUDA_OK;
}

EXPORT int cudaGraphDestroy(void *graph)
{
    free(graph);
    return CUDA_OK;
}

EXPORT int cudaGraphExecDestroy(void *graph)
{
    free(graph);
    return CUDA_OK;
}

EXPORT int cudaUserObjectCreate(void **out, void *, void (*)(void *), unsigned, unsigned)
{
    static char object;
    *out = &object;
    return CUDA_OK;
}

SUCCEEDS(cudaGraphLaunch)
SUCCEEDS(cudaGraphRetainUserObject)
SUCCEEDS(cudaUserObjectRelease)
