/* `moe`: mixtures of experts, beside what `model` says of them. */
#include "deck/schema_rows.h"

static const ts_key rows[] = {
    WORD(moe.balance_over, "global", "micro_batch|global|sequence", NULL, 0,
         "Whose tokens experts should get equal shares of, as the loss for balance (model.output_router_logits) has "
         "it: a "
         "rank's micro-batch (Hugging Face, DeepSpeed), those of all ranks together, or each sample's."),
};

TABLE(ts_keys_moe, rows);
