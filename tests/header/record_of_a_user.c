/* SPDX-License-Identifier: Apache-2.0 */
/* The record macros as a user meets them, with every kind of field; compiled as C99 and as C++17. */
#include <ejkernel/ejkernel.h>

#define INNER(F, R)                                                                                \
    F(OPT_INT, rows, EJK_OPTIONAL, "unset", "rows", "rows a tile computes at once")                \
    F(BOOL, pinned, EJK_OPTIONAL, "false", "", "keep the tile in cache")
EJK_RECORD_STRUCT(inner, INNER);
#define EJK_RECORD_SELF inner
EJK_RECORD_DEFINE(inner_record, inner, INNER);
#undef EJK_RECORD_SELF

#define OUTER(F, R)                                                                                \
    F(INT, count, EJK_OPTIONAL, "0", "", "a count")                                                \
    F(FLOAT, factor, EJK_OPTIONAL, "0", "", "a factor")                                            \
    F(OPT_BOOL, maybe, EJK_OPTIONAL, "unset", "", "a choice")                                      \
    F(OPT_FLOAT, cap, EJK_OPTIONAL, "unset", "", "a cap")                                          \
    F(WINDOW, window, EJK_OPTIONAL, "unlimited", "keys", "a window")                               \
    F(NAME, label, EJK_OPTIONAL, "", "", "a text")                                                 \
    F(DTYPE, dtype, EJK_OPTIONAL, "float32", "", "an element type")                                \
    F(TENSOR, input, EJK_REQUIRED, "", "[n] float", "an input")                                    \
    R(inner, config, inner_record, "a record inside")
EJK_RECORD_STRUCT(outer, OUTER);
#define EJK_RECORD_SELF outer
EJK_RECORD_DEFINE(outer_record, outer, OUTER);
#undef EJK_RECORD_SELF

int fields_of_both(void);
int fields_of_both(void) {
    return (int)(inner_record.count + outer_record.count);
}
