/** \file
 * A terminal that frames are drawn on: its alternate screen, without a cursor, and keys that are read as they are
 * pressed.  However it ends, by a key, a signal, the end of the program, or while it is stopped, the terminal is as it
 * was.  One at a time.  Nothing here is collective.
 */
#ifndef TS_VIEW_SCREEN_H
#define TS_VIEW_SCREEN_H

#include "view/frame.h"

/** What ended a wait. */
typedef enum ts_screen_event {
  TS_SCREEN_TIME,   /**< The time is over. */
  TS_SCREEN_REDRAW, /**< The terminal has another size, or the program goes on after it was stopped. */
  TS_SCREEN_QUIT,   /**< q. */
  TS_SCREEN_END     /**< A signal (ts_screen_signal), or the terminal is gone. */
} ts_screen_event;

/** Is standard output a terminal that frames can be drawn on?  Not with TERM=dumb. Not collective. */
bool ts_screen_is_possible(void);

/** Has the terminal or what reads standard output UTF-8, by the environment (LC_ALL, LC_CTYPE, LANG); are colours
 * wanted (NO_COLOR)? Not collective. */
bool ts_screen_has_utf8(void);
bool ts_screen_wants_colour(void);

/** The terminal's size; 80 x 24 where standard output is none or has none. Not collective. */
void ts_screen_size(int *width, int *height);

/** Take the terminal, and SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT and SIGWINCH. Not collective. */
void ts_screen_open(void);

/** Draw: what differs from the frame before, by one write. Not collective. */
void ts_screen_draw(const ts_frame *frame);

/** Wait for time or for something that happens, whichever is first. Not collective. */
ts_screen_event ts_screen_wait(double seconds);

/** Give the terminal back; nothing where it has been, or was not taken. Not collective. */
void ts_screen_close(void);

/** Are keys read, by a terminal on standard input that was taken? Not collective. */
bool ts_screen_reads_keys(void);

/** The signal that asked to end; 0: none did. Not collective. */
int ts_screen_signal(void);

#endif
