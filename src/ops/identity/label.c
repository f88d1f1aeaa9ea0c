/* SPDX-License-Identifier: Apache-2.0 */
/* Writing labels, and taking them apart. */
#include "ops/identity/label.h"

#include "ops/identity/write.h"

#include <ejkernel/labels.h>
#include <stdlib.h>
#include <string.h>

const char *ejk_label_prefix(const char *prefix) {
    if (prefix != NULL) return prefix;
    const char *environment = getenv("EJKERNEL_OPS_PREFIX");
    return environment != NULL && *environment != '\0' ? environment : EJK_LABEL_PREFIX;
}

/*
 * The length of "name@vversion" at the start of `text`; 0 if there is none. The version is what follows
 * the last "@", and *name_length what stands before.
 */
static size_t op_id_at(const char *text, size_t *name_length) {
    size_t length = 0, at = 0;
    for (; ejki_is_op_char((unsigned char)text[length]); length++)
        if (text[length] == '@') at = length;
    *name_length = at;
    return at > 0 && text[at + 1] == 'v' && at + 2 < length ? length : 0;
}

ejk_status ejk_label_ex(const char *op_id, const char *call_hash, const char *prefix, char **out) {
    if (op_id == NULL || call_hash == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_label_ex: op_id, call_hash or out is NULL");
    size_t name_length, length = op_id_at(op_id, &name_length);
    if (length == 0 || op_id[length] != '\0')
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "op_id: '%.80s' given, expected name@vversion of letters, digits and "
                         "\"_.@-\"",
                         op_id);
    if (!ejki_is_key(call_hash, strlen(call_hash)) || call_hash[EJKI_KEY_DIGITS] != '\0')
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "call_hash: '%.40s' given, expected 16 lower-case hex digits", call_hash);
    prefix = ejk_label_prefix(prefix);
    if (*prefix == '\0')
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "prefix: '' given, by which no label could be found");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    fprintf(text.stream, "%s%s:%s", prefix, op_id, call_hash);
    return ejki_text_close(&text, EJK_OK, out);
}

ejk_status ejk_parse_label(const char *text, const char *prefix, ejk_label_parts *out) {
    if (text == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_parse_label: text or out is NULL");
    prefix = ejk_label_prefix(prefix);
    size_t prefix_length = strlen(prefix);
    if (strncmp(text, prefix, prefix_length) != 0)
        return ejki_fail(EJK_STATUS_MALFORMED, "label '%.80s': it does not begin with '%.40s'",
                         text, prefix);
    ejk_label_parts parts = {.prefix = text, .prefix_length = prefix_length};
    parts.op_id = text + prefix_length;
    parts.op_id_length = op_id_at(parts.op_id, &parts.name_length);
    if (parts.op_id_length == 0 || parts.op_id[parts.op_id_length] != ':')
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "label '%.80s': expected name@vversion and ':' behind the prefix", text);
    parts.version = parts.op_id + parts.name_length + 2;
    parts.version_length = parts.op_id_length - parts.name_length - 2;
    const char *key = parts.op_id + parts.op_id_length + 1;
    if (!ejki_is_key(key, strlen(key)) || key[EJKI_KEY_DIGITS] != '\0')
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "label '%.80s': expected 16 lower-case hex digits at its end", text);
    memcpy(parts.key, key, EJK_SHORT_HASH_SIZE);
    *out = parts;
    return EJK_OK;
}
