/** \file
 * Giving memory back.
 */
#ifndef TS_BASE_FREE_H
#define TS_BASE_FREE_H

/** Free what a function of this library has made for its caller and calls the caller's.  NULL is allowed. Not
 * collective. */
void ts_free(void *pointer);

#endif
