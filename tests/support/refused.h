/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of bad calls. A call is text, `field=value` by spaces, of which the last of a field counts:
 *   x=[2,12,4]      a tensor of zeros in float32, or as int64[2,12]; results hold a pattern
 *   x=[2,4]/[8,2]   the same with these strides
 *   ends={0,7,12}   an int32 tensor with these numbers, or int64{…}
 *   out=@x          the tensor of x, memory included
 *   chunk_size=5    what ejk_record_set_text() reads; `chunk_size=` takes it back
 */
#ifndef TESTS_REFUSED_H
#define TESTS_REFUSED_H

#include <ejkernel/ejkernel.h>

struct refused {
    ejk_status status;
    const char *words;   /* of the sentence */
    const char *changes; /* to the good call; NULL ends a table */
};

/*
 * Makes the good call by the operation's public function, which has to succeed, and each bad one, which has to fail as
 * its row says and write nothing. Prints what is otherwise; returns how many. No rows: NULL.
 */
typedef ejk_status refused_call(ejk_context *context, const void *args);
int64_t refused_faults(const ejk_kernel *kernel, refused_call *call, const char *good,
                       const struct refused *rows);
/* Defines name##_call() of a public function. */
#define REFUSED_CALL(name)                                                                         \
    static ejk_status name##_call(ejk_context *context, const void *args) {                        \
        return name(context, args);                                                                \
    }

#endif
