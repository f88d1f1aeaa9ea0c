/* SPDX-License-Identifier: Apache-2.0 */
/* Stamps: what an executor names a call by. */
#include "ops/identity/write.h"

#include <ejkernel/labels.h>
#include <stdlib.h>
#include <string.h>

static ejk_status check_prefix(const char *stamp_prefix) {
    if (*stamp_prefix != '\0') return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "stamp_prefix: '' given, by which no stamp could be found");
}

ejk_status ejk_hash_stamp(const ejk_kernel *kernel, const char *call_hash, const char *stamp_prefix,
                          char **out) {
    if (stamp_prefix == NULL) stamp_prefix = EJK_STAMP_PREFIX;
    EJKI_TRY(check_prefix(stamp_prefix));
    char *op_id = NULL, *prefix = NULL;
    EJKI_TRY(ejk_versioned_op_id(kernel, &op_id));
    ejki_text text;
    ejk_status status = ejki_text_open(&text);
    if (status == EJK_OK) {
        fprintf(text.stream, "%s#", stamp_prefix);
        status = ejki_text_close(&text, EJK_OK, &prefix);
    }
    if (status == EJK_OK) status = ejk_label_ex(op_id, call_hash, prefix, out);
    free(prefix);
    free(op_id);
    return status;
}

static ejk_status write_stamp(FILE *stream, const ejk_kernel *kernel, const void *args,
                              const void *config, const char *stamp_prefix) {
    fprintf(stream, "%s:{\"args\":", stamp_prefix);
    EJKI_TRY(ejki_write_args(stream, kernel, args));
    fputs(",\"cfg\":", stream);
    if (config != NULL)
        EJKI_TRY(ejki_write_fields(stream, kernel->config, config, EJK_JSON_PLAIN, 0));
    else
        fputs("null", stream);
    fputs(",\"kwargs\":", stream);
    EJKI_TRY(ejki_write_kwargs(stream, kernel, args));
    fputs(",\"op_id\":", stream);
    EJKI_TRY(ejki_write_string(stream, kernel->op_id, strlen(kernel->op_id), "op_id"));
    putc('}', stream);
    return EJK_OK;
}

ejk_status ejk_json_stamp(const ejk_kernel *kernel, const void *args, const void *config,
                          const char *stamp_prefix, char **out) {
    EJKI_TRY(ejki_call_check(kernel, args, "ejk_json_stamp"));
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_json_stamp: out is NULL");
    if (config != NULL && kernel->config == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "config: given for '%.60s', which has no configuration", kernel->op_id);
    if (stamp_prefix == NULL) stamp_prefix = EJK_STAMP_PREFIX;
    EJKI_TRY(check_prefix(stamp_prefix));
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    return ejki_text_close(&text, write_stamp(text.stream, kernel, args, config, stamp_prefix),
                           out);
}
