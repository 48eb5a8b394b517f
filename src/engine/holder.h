/** \file
 * Where this rank keeps values of a part: of each kind of them a leaf, read and written in fp32 whatever its type is.
 * Nothing here is collective.
 */
#ifndef TS_ENGINE_HOLDER_H
#define TS_ENGINE_HOLDER_H

#include "engine/engine.h"

/** Elements [begin, begin + count) of a part in a leaf. */
typedef struct ts_holder {
  ts_tid leaf; /**< TS_NONE: there is none. */
  ts_dtype dtype;
  ts_tid scales;        /**< Of codes in 8 bits; else not looked at. */
  bool has_sign;        /**< Such codes may stand for numbers below 0. */
  bool whole;           /**< All of the part, on every rank. */
  int64_t begin, count; /**< Elements of the part. */
  int64_t first;        /**< Element of the leaf that \a begin is. */
  float factor;         /**< A value is what is stored times this: 1, but for gradients. */
} ts_holder;

/** The holder of a kind of state, with what is valid on this rank. Not collective. */
ts_holder ts_holder_find(const ts_engine *engine, const ts_part *part, ts_state state);

/** That of a parameter's values: the masters, else the working values. Not collective. */
ts_holder ts_holder_of_values(const ts_engine *engine, const ts_part *part);

/** A holder of the elements of this rank's shard alone. Not collective. */
ts_holder ts_holder_of_shard(const ts_holder *holder, const ts_part *part);

/** Read elements [at, at + count) of the part, all of which the holder has. Not collective. */
void ts_holder_read(const ts_engine *engine, const ts_holder *holder, int64_t at, int64_t count, float *value);

/** Write elements [at, at + count) of the part, as far as the holder has them, rounded to nearest.  What reads as its
 * value already stays as it is, to the bit.  Of codes \a at and the end of what is written begin a block, or the
 * latter ends a parameter. Not collective. */
void ts_holder_write(const ts_engine *engine, const ts_holder *holder, int64_t at, int64_t count, const float *value);

/** Write a parameter's elements wherever the holders have them: ts_engine_write_parameter to any holders.
 * Not collective. */
void ts_holders_fill(const ts_engine *engine, const ts_parameter *parameter, const ts_holder *holder, int n,
                     ts_parameter_source *source, void *user);

#endif
