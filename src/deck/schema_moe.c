/* `moe`: mixtures of experts, beside what `model` says of them. */
#include "deck/schema_rows.h"

enum { MOST = TS_DECK_MOST_EXPERTS, MOST_CHOSEN = TS_DECK_MOST_CHOSEN };

static const ts_key rows[] = {
    NUMBER(
        moe.z_loss_coef, "0.0", 0, 1e6, 0,
        "The loss has this times the mean over tokens of logsumexp (router's logits)^2, of every layer with experts."),
    WORD(moe.router_dtype, "fp32", "fp32|model", NULL, 0,
         "Logits of routers are fp32 in every precision, or rounded to the type of the model, as Hugging Face has "
         "them; all that follows is fp32."),
    WORD(moe.balance_over, "global", "micro_batch|global|sequence", NULL, 0,
         "Whose tokens experts should get equal shares of, as the loss for balance (model.output_router_logits) has "
         "it: a rank's micro-batch (Hugging Face, DeepSpeed), those of all ranks together, or each sample's."),
    WORD(moe.save, "auto", "auto|rows|nothing", NULL, 0,
         "What the backward finds of experts: the rows of tokens, which are as many as all could be, in every layer; "
         "or nothing, and tokens are dispatched again, so there is room for them once.  auto: nothing where ranks have "
         "other experts (autoep_size), else rows."),
    WORD(moe.dispatch, "auto", "auto|alltoall|allgather", NULL, 0,
         "How tokens come to experts of other ranks (autoep_size).  alltoall: each choice's row goes to the rank that "
         "has the expert, and back.  allgather: all ranks get the tokens of all, and what each makes of them is added "
         "up.  "
         "auto: what sends less, k rows of a token or one for each rank; on GPUs allgather, since the host has to "
         "read counts for the other."),
    INTEGER(moe.token_chunks, "1", 1, 4096, 0,
            "Tokens of a layer go to their experts in so many chunks, one after another: there is room for as many "
            "times fewer rows at a time, with moe.save = nothing in the backward too.  Sums of the experts' gradients "
            "are rounded in another order."),
    NUMBER(moe.aux_loss_coef, "0.0", 0, 1e6, 0,
           "The loss has this times the l_aux of every layer with experts: E sum_e f_e p_e of each layer by itself, "
           "f_e the share of first choices (moe.k 1, 2) or of all."),
    {STORED(INTS, moe.num_experts), .initial = "[]", .min = 1, .max = MOST, .flags = TS_KEY_ONE,
     .help = "DeepSpeed's MoE layers in a gpt2 or llama: how many experts each has, or one number for all.  An "
             "expert is an MLP as the model's own."},
    INTEGERS(moe.layers, 0, SIZE, "Layers that are MoE layers, from 0; [] for every second: 1, 3, ..."),
    INTEGER(moe.k, "1", 1, MOST_CHOSEN, 0,
            "Experts of a token.  The weight of one is its probability; of more, probabilities divided by their sum."),
    NUMBER(moe.capacity_factor, "1.0", 1e-6, 1e6, 0,
           "With drop_tokens an expert takes at most ceil (tokens / experts times this times k) of the choices of "
           "moe.capacity_over, at least min_capacity; the others are dropped."),
    NUMBER(moe.eval_capacity_factor, "1.0", 1e-6, 1e6, 0,
           "The same where the model is evaluated.  Text is generated without a limit."),
    INTEGER(moe.min_capacity, "4", 0, SIZE, 0, "What an expert takes at least."),
    FLAG(moe.drop_tokens, "true", 0, "false: experts take all tokens."),
    WORD(moe.noisy_gate_policy, "None", "None|RSample|Jitter", NULL, 0,
         "Noise in training.  RSample, with k = 1: the choice is by logits with Gumbel noise.  Jitter: the router "
         "reads its input times 0.99 to 1.01."),
    FLAG(moe.use_rts, "true", 0,
         "With k = 1, in training: which tokens an expert drops is left to chance; else it drops the last ones."),
    FLAG(moe.top2_2nd_expert_sampling, "true", 0,
         "With k = 2, in training: the second expert is chosen by logits with Gumbel noise."),
    WORD(moe.drop_policy, "probs", "probs|position", NULL, 0,
         "With k > 2: an expert drops the tokens with the lowest probabilities, or the last ones.  With k = 2 it "
         "drops the last ones, second choices after first ones."),
    WORD(moe.capacity_over, "micro_batch", "micro_batch|sequence", NULL, 0,
         "What an expert's capacity is for: the tokens that a rank routes together, as in DeepSpeed, or each "
         "sample's, which is the same on every grid."),
    FLAG(moe.use_residual, "false", 0,
         "Residual MoE: the model's own MLP goes beside the experts, and a softmax of two logits weighs both."),
    FLAG(moe.router_bias, "false", 0,
         "Routers have a bias that is added to probabilities for the choice alone, which expert_parallel."
         "load_balance_coeff lets follow the balance (DeepSpeed has none).  Not where experts are sampled."),
    FLAG(moe.enable_expert_tensor_parallelism, "false", 0,
         "expert_parallel.expert_tensor_parallel_size is tensor_parallel.autotp_size."),
    NONE("moe.use_tutel", BOOL, "false", "there is one way to bring rows together"),
};

TABLE(ts_keys_moe, rows);
