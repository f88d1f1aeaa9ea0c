/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/core/json_text.h"

#include "base/base.h"

#include <jansson.h>
#include <stdlib.h>

ejk_status ejki_json_text(const json_t *json, size_t flags, char **out) {
    const size_t size = json_dumpb(json, NULL, 0, flags);
    char *text = size > 0 ? malloc(size + 1) : NULL;
    if (text && json_dumpb(json, text, size, flags) == size) {
        text[size] = '\0';
        *out = text;
        return EJK_OK;
    }
    free(text);
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a JSON text of %zu bytes", size);
}
