/** \file
 * Sequence parallelism as numbers: which tokens of a sample and which heads each rank along sp has.
 *
 * sp = r x u: rank i u + j is rank j of ring i, so that the ranks of a ring are neighbours.  A sample is cut into
 * chunks, at multiples of TS_CHUNK_TOKENS tokens where chunks are longer than that, else as even as can be; ring i has
 * the chunks i and 2r - 1 - i of 2r (zigzag: under a causal mask every ring then has as much to do), or chunk i of r
 * (contiguous).  Between attentions each rank of a ring has a share of its ring's tokens, and works on all heads of
 * them; in attention it has all the ring's tokens, and a share of the heads (Jacobs et al., "DeepSpeed Ulysses", 2023),
 * while keys of other rings come to it (Liu et al., "Ring Attention", 2023).
 *
 * Nothing has to divide; a rank may have no tokens.  Not collective, any of it: a function of the arguments.
 */
#ifndef TS_PASS_SEQUENCE_H
#define TS_PASS_SEQUENCE_H

#include "backend/backend.h"
#include "comm/mesh.h"
#include "deck/deck.h"
#include "graph/graph.h"

#define TS_CHUNK_TOKENS 128

typedef struct ts_sequence {
  int64_t length;    /**< Tokens of a sample. */
  int ulysses, ring; /**< u and r; 1 and 1 without sequence parallelism. */
  int rank;          /**< This one's along sp. */
  bool zigzag;
  bool gathers; /**< Keys of other rings come all at once; else ring by ring. */
} ts_sequence;

/** Heads of a model's attention, before anybody shares them. */
typedef struct ts_attention_heads {
  int64_t heads, kv_heads, head_dim;
} ts_attention_heads;

/** Those of the deck's model; of a model of a program's own, whose forward graph \a own is (else NULL), those of the
 * attention of which fewest ranks along sp can share a rank's (ts_sequence_heads), and without any as many as anybody
 * may want. Not collective. */
ts_attention_heads ts_attention_heads_of(const ts_deck *deck, const ts_graph *own, const ts_mesh *mesh);

/** How the ranks of a mesh share samples of \a length tokens.  What the deck leaves open is decided here, alike on all
 * ranks. Not collective.
 * \param [in] backend  Whose speeds decide (ts_sequence_seconds). */
ts_sequence ts_sequence_of(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, int64_t length,
                           const ts_backend *backend);

/** What can be wrong with the deck's head_groups, on one rank too, and degrees, once the grid is known. Not collective.
 * \return TS_BAD_INPUT with the key, and what is accepted. */
ts_status ts_sequence_check(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh, ts_error *err);

/** What the exchange of a block costs. */
typedef struct ts_sequence_cost {
  double ulysses_bytes, ring_bytes; /**< That a rank sends in a forward pass; keys of other rings are ring_bytes. */
  double seconds; /**< Of these, what attention does not hide, and of merging: a guess from the backend's speeds. */
} ts_sequence_cost;

/** The cost of r = \a ring and u = \a ulysses: with t = T / sp tokens, e bytes an element and K = n max (G / n, u) key
 * heads of n head_groups, e t (u - 1) / u (2 H D + 2 K D) bytes for heads and 2 e (r - 1) t K D for keys, which travel
 * under attention where they come ring by ring. Not collective. */
ts_sequence_cost ts_sequence_cost_of(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh,
                                     int64_t length, int ulysses, int ring, const ts_backend *backend);

/** Query heads of the smallest group (sequence_parallel.head_groups) of any rank along tp: as many ranks can share
 * them.  At least 1 where ts_sequence_check is content. Not collective. */
int ts_sequence_heads(const ts_deck *deck, const ts_attention_heads *model, const ts_mesh *mesh);

/** The tokens of a rank along sp, and of a ring. Not collective. */
ts_tokens ts_sequence_tokens(const ts_sequence *s, int rank);
ts_tokens ts_sequence_ring(const ts_sequence *s, int ring);

/** How many there are, of tokens that are not all of a sample. Not collective. */
int64_t ts_sequence_count(const ts_tokens *tokens);

/** Fewest tokens, and most, of a rank along sp. Not collective. */
int64_t ts_sequence_least(const ts_sequence *s);
int64_t ts_sequence_most(const ts_sequence *s);

/** Tokens that somebody in \a ring sees under a mask: causal or not, of \a window keys (0: all). Not collective. */
ts_tokens ts_sequence_seen(const ts_sequence *s, int ring, bool causal, int64_t window);

/** Those of \a a that \a b has too. Not collective. */
ts_tokens ts_sequence_both(const ts_tokens *a, const ts_tokens *b);

/** The query heads of rank \a j of a ring among \a heads, \a group of the whole a key head, the first of them number
 * \a first of the whole: whole groups where that gives nobody more, and everybody
 * something, else one by one. Not collective. */
ts_interval ts_sequence_share(int heads, int group, int first, int ulysses, int j);

#endif
