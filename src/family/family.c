#include "family/family.h"

#include "base/memory.h"
#include "base/text.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

const ts_family *ts_family_find(const char *model_type) {
  const ts_family *const *family = ts_families;
  while (*family != NULL && strcasecmp((*family)->model_type, model_type) != 0) {
    ++family;
  }
  return *family;
}

const ts_family_key *ts_family_key_at(const ts_family *family, int i) {
  for (int list = 0; family->keys[list] != NULL; ++list) {
    for (const ts_family_key *key = family->keys[list]; key->path != NULL; ++key) {
      if (ts_family_key_find(family, key->path) == key && i-- == 0) {
        return key;
      }
    }
  }
  return NULL;
}

bool ts_family_has(const ts_family *family, const char *path) {
  bool has = false;
  for (int list = 0; family->keys[list] != NULL && !has; ++list) {
    for (const ts_family_key *key = family->keys[list]; key->path != NULL && !has; ++key) {
      size_t n = key->path[0] == path[0] ? strlen(key->path) : 0;
      has = n > 0 && strncmp(key->path, path, n) == 0 && (path[n] == '\0' || path[n] == '.');
    }
  }
  return has;
}

const ts_family_key *ts_family_key_find(const ts_family *family, const char *path) {
  for (int list = 0; family->keys[list] != NULL; ++list) {
    for (const ts_family_key *key = family->keys[list]; key->path != NULL; ++key) {
      if (strcmp(key->path, path) == 0) {
        return key;
      }
    }
  }
  return NULL;
}

char *ts_family_class(const ts_family *f, const char *unit) {
  const char *end = strstr(f->architecture, "ForCausalLM");
  end = end != NULL ? end : strstr(f->architecture, "LMHeadModel");
  int length = end != NULL ? (int) (end - f->architecture) : (int) strlen(f->architecture);
  bool block = strncmp(unit, f->layers, strlen(f->layers)) == 0 && unit[strlen(f->layers)] == '.';
  if (block && strncmp(f->architecture, "GPTNeoX", 7) == 0) {
    return ts_strdup("GPTNeoXLayer");
  }
  if (block) {
    return ts_format("%.*s%s", length, f->architecture, strcmp(f->model_type, "gpt2") == 0 ? "Block" : "DecoderLayer");
  }
  if (strcmp(unit, f->final_norm) == 0) {
    return f->norm_kind == TS_NORM_LAYER ? ts_strdup("LayerNorm") : ts_format("%.*sRMSNorm", length, f->architecture);
  }
  return ts_strdup(strcmp(unit, f->head) == 0 ? "Linear" : "Embedding");
}

bool ts_family_has_class(const ts_family *f, const char *class_name) {
  static const char *const kinds[] = {"Attention",  "MLP",     "SparseMoeBlock", "MoE",          "Experts",
                                      "TopKRouter", "RMSNorm", "Block",          "DecoderLayer", "Layer"},
                           *const plain[] = {"Linear", "Embedding", "LayerNorm"},
                           *const layers[] = {"MoE", "MOELayer", "TopKGate"};
  const char *const own[] = {f->linear_class, f->embedding_class, f->norm_class};
  const char *end = strstr(f->architecture, "ForCausalLM");
  end = end != NULL ? end : strstr(f->architecture, "LMHeadModel");
  size_t n = end != NULL ? (size_t) (end - f->architecture) : 0;
  bool has = false, begins = n > 0 && strncmp(class_name, f->architecture, n) == 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    has = has || (begins && strcmp(class_name + n, kinds[i]) == 0);
  }
  for (size_t i = 0; i < sizeof plain / sizeof *plain; ++i) {
    has = has || strcmp(class_name, plain[i]) == 0 || (own[i] != NULL && strcmp(class_name, own[i]) == 0) ||
          (f->residual != NULL && strcmp(class_name, layers[i]) == 0);
  }
  return has;
}

bool ts_family_is_router_bias(const char *name) {
  bool is = false;
  for (const ts_family *const *f = ts_families; *f != NULL; ++f) {
    const char *own = (*f)->router_bias, *layers = (*f)->with_experts != NULL ? (*f)->with_experts->router_bias : NULL;
    is = is || (own != NULL && ts_ends_in(name, own)) || (layers != NULL && ts_ends_in(name, layers));
  }
  return is;
}
