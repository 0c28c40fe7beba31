/* Answers from a table: a message of one byte gets the number of messages with this byte so far, in four
 * bytes, big-endian. Longer messages reach the application, empty ones are discarded. */
#include "ash.h"

static uint32_t counts[256];
static uint8_t reply[4];

int32_t ash_handle(const uint8_t *message, size_t length, uint64_t connection, uint32_t slot) {
    (void)connection;
    (void)slot;
    if (length == 0)
        return ASH_DISCARD;
    if (length > 1)
        return ASH_PASS;
    uint32_t count = ++counts[message[0]];
    reply[0] = count >> 24;
    reply[1] = count >> 16;
    reply[2] = count >> 8;
    reply[3] = count;
    return ash_send(reply, sizeof reply) == ASH_OK ? ASH_HANDLED : ASH_ABORT;
}
