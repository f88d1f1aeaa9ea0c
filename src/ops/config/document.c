/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/document.h"

#include <stdio.h>

void ejki_document_key_join(const ejk_config_key *key, char out[EJKI_DOCUMENT_KEY_SIZE]) {
    snprintf(out, EJKI_DOCUMENT_KEY_SIZE, "%s|%s|%s", key->device, key->op_id, key->call_key);
}

ejk_status ejki_document_key_split(const char *text, char parts[EJKI_DOCUMENT_KEY_SIZE],
                                   ejk_config_key *out) {
    size_t length = strnlen(text, EJKI_DOCUMENT_KEY_SIZE);
    if (length == EJKI_DOCUMENT_KEY_SIZE)
        return ejki_fail(EJK_STATUS_MALFORMED, "a key has more than %d bytes",
                         EJKI_DOCUMENT_KEY_SIZE - 1);
    memcpy(parts, text, length + 1);
    char *call_key = strrchr(parts, '|');
    if (call_key) *call_key++ = '\0';
    char *op_id = call_key ? strrchr(parts, '|') : NULL;
    if (!op_id)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "key \"%.80s\" has no two '|'; expected <device>|<op_id>|<call_key>",
                         text);
    *op_id++ = '\0';
    *out = (ejk_config_key){.device = parts, .op_id = op_id, .call_key = call_key, .layout = ""};
    return EJK_OK;
}
