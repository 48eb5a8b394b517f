/* What lines do on the host and on devices alike. */
#include "comm/comm_line.h"

void ts_message_line_destroy(ts_message_line **line) {
  if (*line != NULL) {
    ts_message_wait(*line);
    (*line)->ops->destroy(*line);
    *line = NULL;
  }
}

void ts_message_announce(ts_message_line *line) {
  line->ops->announce(line);
}

void ts_message_start(ts_message_line *line) {
  TS_CHECK(!line->open, "a message is started that is under way");
  line->ops->start(line);
  line->open = true;
}

bool ts_message_is_open(const ts_message_line *line) {
  return line->open;
}

bool ts_message_poll(ts_message_line *line) {
  line->open = line->open && !line->ops->poll(line);
  return !line->open;
}

void ts_message_wait(ts_message_line *line) {
  if (line->open) {
    line->ops->wait(line);
    line->open = false;
  }
}
