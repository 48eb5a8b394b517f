/** \file
 * The modules that torch_autocast.lower_precision_safe_modules may name.  No functions; nothing here is collective.
 */
#ifndef TS_DECK_AUTOCAST_WORDS_H
#define TS_DECK_AUTOCAST_WORDS_H

/** DeepSpeed's default.  There are no convolutions in these models. */
#define TS_AUTOCAST_DEFAULT "[\"torch.nn.Linear\", \"torch.nn.Conv1d\", \"torch.nn.Conv2d\", \"torch.nn.Conv3d\"]"

/** With the modules they are defined in, which torch calls them by too. */
#define TS_AUTOCAST_TORCH                                                                                  \
  "torch.nn.Linear|torch.nn.Conv1d|torch.nn.Conv2d|torch.nn.Conv3d|torch.nn.Embedding|torch.nn.LayerNorm|" \
  "torch.nn.modules.linear.Linear|torch.nn.modules.conv.Conv1d|torch.nn.modules.conv.Conv2d|"              \
  "torch.nn.modules.conv.Conv3d|torch.nn.modules.sparse.Embedding|torch.nn.modules.normalization.LayerNorm|"

/** Classes of transformers. */
#define TS_AUTOCAST_FAMILIES                                                  \
  "transformers.models.llama.modeling_llama.LlamaRMSNorm|"                    \
  "transformers.models.mistral.modeling_mistral.MistralRMSNorm|"              \
  "transformers.models.qwen2.modeling_qwen2.Qwen2RMSNorm|"                    \
  "transformers.models.qwen3.modeling_qwen3.Qwen3RMSNorm|"                    \
  "transformers.models.gemma.modeling_gemma.GemmaRMSNorm|"                    \
  "transformers.models.gemma2.modeling_gemma2.Gemma2RMSNorm|"                 \
  "transformers.models.gemma3.modeling_gemma3.Gemma3RMSNorm|"                 \
  "transformers.models.gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding|" \
  "transformers.models.phi3.modeling_phi3.Phi3RMSNorm|"                       \
  "transformers.models.olmo2.modeling_olmo2.Olmo2RMSNorm|"                    \
  "transformers.models.olmo3.modeling_olmo3.Olmo3RMSNorm|"                    \
  "transformers.models.smollm3.modeling_smollm3.SmolLM3RMSNorm|"              \
  "transformers.models.granite.modeling_granite.GraniteRMSNorm"

/** Those of the rows of family/families.c have the same last words. */
#define TS_AUTOCAST_CLASSES \
  TS_AUTOCAST_TORCH "transformers.pytorch_utils.Conv1D|transformers.Conv1D|" TS_AUTOCAST_FAMILIES

#endif
