/* SPDX-License-Identifier: Apache-2.0 */
/* Orders in memory of the axes that operations of attention share: batch, tokens, heads, head size. */
#ifndef EJKI_ATTENTION_SYMBOLS_H
#define EJKI_ATTENTION_SYMBOLS_H

/* By the first, which is that of the operation's shapes. */
#define EJKI_ATTENTION_TOKENS_FIRST "bthd|bhtd b=B t=T|S h=Hq|Hkv d=D|Dv"
#define EJKI_ATTENTION_HEADS_FIRST  "bhtd|bthd b=B t=T|S h=Hq|Hkv d=D|Dv"

#endif
