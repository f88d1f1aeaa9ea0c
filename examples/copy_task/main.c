/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small model through this library's gradients. Arguments: steps, by default 160, and a platform. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    const int steps = count > 1 ? atoi(words[1]) : 160;
    ejk_context *context = NULL;
    copy_model *model = NULL;
    double loss, right;
    ejk_status status = ejk_context_create(NULL, &context);
    if (status == EJK_OK) status = copy_open(context, count > 2 ? words[2] : "auto", &model);
    for (int i = 0; i < steps && status == EJK_OK; i++) {
        status = copy_step(model, &loss, &right);
        if (status == EJK_OK && (i % 20 == 0 || i + 1 == steps))
            printf("step %4d: loss %.5f, %5.1f %% repeated rightly\n", i, loss, 100 * right);
    }
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    copy_close(model);
    ejk_context_destroy(context);
    return status == EJK_OK ? 0 : 1;
}
