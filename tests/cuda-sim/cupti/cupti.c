/* CUPTI: a profiler that finds nothing to report. */
#include <stdint.h>

#include "export.h"

EXPORT int cuptiGetVersion(uint32_t *version)
{
    *version = 130200;
    return 0;
}

EXPORT int cuptiActivityGetNextRecord(void *, uint64_t, void **record)
{
    enum { NO_MORE_RECORDS = 12 }; /* CUPTI_ERROR_MAX_LIMIT_REACHED, cupti_result.h */
    *record = 0;
    return NO_MORE_RECORDS;
}

EXPORT int cuptiActivityGetNumDroppedRecords(void *, uint32_t, uint64_t *dropped)
{
    *dropped = 0;
    return 0;
}

EXPORT int cuptiActivityPopExternalCorrelationId(int, uint64_t *id)
{
    if (id)
        *id = 0;
    return 0;
}

EXPORT int cuptiSubscribe(void **subscriber)
{
    static char only;
    *subscriber = &only;
    return 0;
}

EXPORT int cuptiGetCallbackName(int, uint32_t, const char **name)
{
    *name = "unknown";
    return 0;
}

EXPORT int cuptiGetResultString(int, const char **text)
{
    *text = "result of the simulated CUPTI";
    return 0;
}
