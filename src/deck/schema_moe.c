/* `moe`: mixtures of experts, beside what `model` says of them. */
#include "deck/schema_rows.h"

static const ts_key rows[] = {
    NUMBER(
        moe.z_loss_coef, "0.0", 0, 1e6, 0,
        "The loss has this times the mean over tokens of logsumexp (router's logits)^2, of every layer with experts."),
    WORD(moe.router_dtype, "fp32", "fp32|model", NULL, 0,
         "Logits of routers are fp32 in every precision, or rounded to the type of the model, as Hugging Face has "
         "them; all "
         "that follows is fp32."),
    WORD(moe.balance_over, "global", "micro_batch|global|sequence", NULL, 0,
         "Whose tokens experts should get equal shares of, as the loss for balance (model.output_router_logits) has "
         "it: a "
         "rank's micro-batch (Hugging Face, DeepSpeed), those of all ranks together, or each sample's."),
};

TABLE(ts_keys_moe, rows);
