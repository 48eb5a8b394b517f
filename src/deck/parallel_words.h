/** \file
 * The words of tensor_parallel.tp_plan[].style and of tensor_parallel.preset_model, each in one list: the deck
 * accepts them, pass/marks_preset.c says what they mean.  No functions; nothing here is collective.
 */
#ifndef TS_DECK_PARALLEL_WORDS_H
#define TS_DECK_PARALLEL_WORDS_H

/** Hugging Face's styles: X(word, how it is cut, what the cut dimension is made up of, its outputs are gathered, it is
 * for embeddings too). */
#define TS_TP_STYLES(X)                                \
  X(colwise, COLUMN, PLAIN, false, false)              \
  X(rowwise, ROW, PLAIN, false, false)                 \
  X(colwise_rep, COLUMN, PLAIN, true, false)           \
  X(colwise_gather_output, COLUMN, PLAIN, true, false) \
  X(rowwise_rep, ROW, PLAIN, false, false)             \
  X(rowwise_split_input, ROW, PLAIN, false, false)     \
  X(packed_colwise, COLUMN, HALVES, false, false)      \
  X(packed_rowwise, ROW, HALVES, false, false)         \
  X(embedding_rowwise, COLUMN, PLAIN, false, true)     \
  X(replicate, WHOLE, PLAIN, false, true)              \
  X(replicated, WHOLE, PLAIN, false, true)             \
  X(replicated_with_grad_allreduce, WHOLE, PLAIN, false, true)

/** DeepSpeed's presets: X(word, table of patterns). */
#define TS_TP_PRESETS(X)        \
  X(none, no_rows)              \
  X(llama, llama_rows)          \
  X(bloom, bloom_rows)          \
  X(chatglm, chatglm_rows)      \
  X(mixtral, mixtral_rows)      \
  X(deepseek_v2, deepseek_rows) \
  X(qwen2, llama_rows)          \
  X(phi3, phi3_rows)

/** In a list of accepted words: "|word". */
#define TS_BAR_WORD(word, ...) "|" #word

#endif
