/* cuDNN: the backend interface that cudnn-frontend speaks. A descriptor keeps whatever attributes
 * it is given; a search for engines finds one. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_abi.h"

struct attribute {
    int name;
    int type;
    int64_t count;
    void *elements;
    struct attribute *next;
};

struct descriptor {
    struct attribute *attributes;
};

/* cudnnBackendAttributeType_t, cudnn_graph.h */
enum attribute_type {
    TYPE_HANDLE = 0,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_DOUBLE = 5,
    TYPE_POINTER = 6,
    TYPE_DESCRIPTOR = 15,
    TYPE_CHAR = 24,
    TYPE_FRACTION = 26,
};

/* cudnnBackendAttributeName_t, cudnn_graph.h */
enum attribute_name {
    HEURISTIC_RESULTS = 202,
    CONFIGURATION_ENGINE = 300,
    CONFIGURATION_KNOB_CHOICES = 302,
    PLAN_WORKSPACE_SIZE = 402,
    GRAPH_ENGINE_COUNT = 802,
    ENGINE_KNOBS = 1302,
    ENGINE_NUMERICAL_NOTES = 1303,
    ENGINE_BEHAVIOR_NOTES = 1305,
};

static size_t element_bytes(int type)
{
    switch ((enum attribute_type)type) {
    case TYPE_HANDLE:
    case TYPE_POINTER:
    case TYPE_DESCRIPTOR:
    case TYPE_INT64:
    case TYPE_DOUBLE: return 8;
    case TYPE_FRACTION: return 16;
    case TYPE_BOOLEAN:
    case TYPE_CHAR: return 1;
    }
    return 4; /* the enumerations */
}

EXPORT int cudnnBackendCreateDescriptor(int, struct descriptor **out)
{
    *out = calloc(1, sizeof **out);
    return STATUS_SUCCESS;
}

EXPORT int cudnnBackendDestroyDescriptor(struct descriptor *descriptor)
{
    if (!descriptor)
        return STATUS_SUCCESS;
    struct attribute *attribute = descriptor->attributes;
    while (attribute) {
        struct attribute *next = attribute->next;
        free(attribute->elements);
        free(attribute);
        attribute = next;
    }
    free(descriptor);
    return STATUS_SUCCESS;
}

EXPORT int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count,
                                    const void *elements)
{
    if (count < 0)
        return STATUS_BAD_PARAM;
    size_t size = (size_t)count * element_bytes(type);
    struct attribute *attribute = malloc(sizeof *attribute);
    if (!attribute)
        abort();
    *attribute = (struct attribute){ name, type, count, calloc(1, size + 1), descriptor->attributes };
    if (!attribute->elements)
        abort();
    if (elements)
        memcpy(attribute->elements, elements, size);
    descriptor->attributes = attribute;
    return STATUS_SUCCESS;
}

static const struct attribute *attribute_named(const struct descriptor *descriptor, int name)
{
    const struct attribute *attribute = descriptor->attributes;
    while (attribute && attribute->name != name)
        attribute = attribute->next;
    return attribute;
}

static int answer(int64_t *count, int64_t value)
{
    if (count)
        *count = value;
    return STATUS_SUCCESS;
}

EXPORT int cudnnBackendGetAttribute(const struct descriptor *descriptor, int name, int type,
                                    int64_t room, int64_t *count, void *out)
{
    switch ((enum attribute_name)name) {
    case HEURISTIC_RESULTS:
    case CONFIGURATION_ENGINE: return answer(count, 1);
    case ENGINE_KNOBS:
    case ENGINE_NUMERICAL_NOTES:
    case ENGINE_BEHAVIOR_NOTES:
    case CONFIGURATION_KNOB_CHOICES: return answer(count, 0);
    case PLAN_WORKSPACE_SIZE:
        if (out)
            *(int64_t *)out = WORKSPACE_BYTES;
        return answer(count, 1);
    case GRAPH_ENGINE_COUNT:
        if (out)
            *(int64_t *)out = 1;
        return answer(count, 1);
    }

    const struct attribute *attribute = attribute_named(descriptor, name);
    if (attribute) {
        int64_t given = attribute->count < room ? attribute->count : room;
        if (out && given > 0)
            memcpy(out, attribute->elements, (size_t)given * element_bytes(attribute->type));
        return answer(count, attribute->count);
    }
    if (type == TYPE_DESCRIPTOR)
        return answer(count, 0);
    if (out && room > 0)
        memset(out, 0, (size_t)room * element_bytes(type));
    return answer(count, room);
}

SUCCEEDS(cudnnBackendFinalize)
SUCCEEDS(cudnnBackendExecute)
