/* The parameters as one file, while the engine goes on: part by part each rank gets what its group has, then what the
 * ranks along tp have of each parameter, and rank 0 writes.  A part is what a unit gathers in a forward at stage 3, so
 * that much memory is there, or nearly. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/beside.h"
#include "engine/checkpoints.h"
#include "engine/engine.h"
#include "family/family.h"
#include "io/safetensors.h"
#include "pass/saved.h"

#include <string.h>

typedef struct export {
  ts_engine *engine;
  ts_dtype dtype; /* of the file */
  bool exclude_frozen;
  ts_safetensors_writer *writer; /* rank 0 */
  ts_status status;              /* of rank 0's writes; the others go on with it */
  ts_error why;                  /* owned */
  double bytes;
  int n_tensors;
}
export;

/* ---- values ---- */

static bool is_exported(const export *x, const ts_parameter *p) {
  const ts_part *part = &ts_engine_layout(x->engine)->part[p->part];
  return part->trainable || !x->exclude_frozen || ts_family_is_router_bias(p->name);
}

static bool is_any_exported(const export *x, const ts_part *part) {
  bool any = false;
  for (int i = part->first; i < part->first + part->n_parameters; ++i) {
    any = any || is_exported(x, &ts_engine_layout(x->engine)->parameter[i]);
  }
  return any;
}

/* What a part is written in: that of which there is only fp32 stays so. */
static ts_dtype dtype_of_part(const export *x, const ts_part *part) {
  return ts_family_is_router_bias(ts_engine_layout(x->engine)->parameter[part->first].name) ? TS_F32 : x->dtype;
}

/* What a part computes with; where it has no copy in the working type, its masters. */
static ts_saved_leaf find_values(const ts_engine *e, int index) {
  const ts_program *p = ts_engine_program(e);
  ts_saved_leaf leaf;
  bool found = ts_saved_leaf_find(p->graph, p->layout, index, TS_STATE_PARAMETER, &leaf) ||
               ts_saved_leaf_find(p->graph, p->layout, index, TS_STATE_MASTER, &leaf);
  TS_CHECK(found, "part %s has no parameters", p->layout->part[index].name);
  return leaf;
}

/* All of a part in the file's type, the caller's (ts_free).  Collective over the part's group. */
static void *gather_whole(const export *x, int index) {
  const ts_part *part = &ts_engine_layout(x->engine)->part[index];
  ts_saved_leaf leaf = find_values(x->engine, index);
  size_t size = ts_dtype_size(leaf.dtype);
  char *whole = ts_malloc((size_t) part->count * size);
  if (leaf.whole) {
    ts_executor_read_state(x->engine->executor, leaf.leaf, 0, part->count, whole);
  } else {
    char *mine = whole + (size_t) ts_part_begin(part) * size;
    ts_executor_read_state(x->engine->executor, leaf.leaf, leaf.first, leaf.count, mine);
    ts_transfer transfer = {.x = mine, .y = whole, .cuts = part->cuts, .begin = 0, .end = part->shard};
    ts_comm *comm = ts_world_comm(x->engine->world, &x->engine->mesh, part->axes);
    comm->ops->all_gather(comm, &transfer, 1, leaf.dtype);
  }
  ts_dtype dtype = dtype_of_part(x, part);
  if (leaf.dtype != dtype) {
    char *converted = ts_malloc((size_t) part->count * ts_dtype_size(dtype));
    ts_convert(converted, dtype, whole, leaf.dtype, (size_t) part->count);
    ts_free(whole);
    whole = converted;
  }
  return whole;
}

static void write_tensor(export *x, int index, ts_dtype dtype, const char *held) {
  const ts_parameter *p = &ts_engine_layout(x->engine)->parameter[index];
  size_t bytes = (size_t) ts_shape_count(&p->shape) * ts_dtype_size(dtype);
  void *value = ts_malloc(bytes);
  ts_engine_put_together(x->engine, index, dtype, held, value);
  if (x->writer != NULL && x->status == TS_OK) {
    x->status = ts_safetensors_add(x->writer, value, bytes, &x->why);
  }
  x->bytes += (double) bytes;
  ts_free(value);
}

static void write_parts(export *x) {
  const ts_layout *layout = ts_engine_layout(x->engine);
  for (int i = 0; i < layout->n_parts; ++i) {
    const ts_part *part = &layout->part[i];
    if (!is_any_exported(x, part)) {
      continue;
    }
    ts_dtype dtype = dtype_of_part(x, part);
    size_t size = ts_dtype_size(dtype), bytes = (size_t) part->count * size;
    char *whole = part->here ? gather_whole(x, i) : ts_malloc(bytes);
    ts_engine_tell_stages(x->engine, part, whole, bytes);
    for (int k = part->first; k < part->first + part->n_parameters; ++k) {
      if (is_exported(x, &layout->parameter[k])) {
        write_tensor(x, k, dtype, whole + (size_t) layout->parameter[k].offset * size);
      }
    }
    ts_free(whole);
  }
}

/* ---- the file ---- */

/* In the order they are written. */
static ts_status begin_model_file(export *x, const char *path, ts_error *err) {
  const ts_layout *layout = ts_engine_layout(x->engine);
  ts_safetensor *tensor = ts_calloc((size_t) layout->n_parameters, sizeof *tensor);
  for (int i = 0; i < layout->n_parts; ++i) {
    const ts_part *part = &layout->part[i];
    for (int k = part->first; k < part->first + part->n_parameters; ++k) {
      const ts_parameter *p = &layout->parameter[k];
      if (is_exported(x, p)) {
        ts_safetensor *t = &tensor[x->n_tensors++];
        *t = (ts_safetensor){.name = p->name, .dtype = dtype_of_part(x, part), .n_dims = p->shape.n};
        memcpy(t->shape, p->shape.d, (size_t) p->shape.n * sizeof *t->shape);
      }
    }
  }
  ts_status status = x->n_tensors > 0
                         ? ts_safetensors_begin(path, tensor, x->n_tensors, &x->writer, err)
                         : ts_error_add(err, "ts_save_16bit_model: every parameter is frozen: exclude_frozen leaves "
                                             "nothing");
  ts_free(tensor);
  return status;
}

/* Rank 0: where the directory has a config.json already, it stays as it is. */
static ts_status write_beside(const ts_engine *e, const char *directory, ts_dtype dtype, ts_error *err) {
  if (ts_deck_model_is_own(e->deck) || ts_has_file(directory, "config.json")) {
    return TS_OK;
  }
  ts_beside beside;
  ts_text config = {0};
  ts_beside_find(e->deck->run.directory, e->deck->model.from, e->deck, &beside);
  ts_status status = ts_beside_config(&beside, e->deck, dtype, &config, err);
  status = status == TS_OK ? ts_beside_write(&beside, &config, directory, err) : status;
  ts_text_free(&config);
  ts_beside_clear(&beside);
  return status;
}

/* Every rank takes part in what is sent, also when rank 0 cannot write any more. */
static ts_status write_model(export *x, const char *directory, const char *path, ts_error *err) {
  const ts_engine *e = x->engine;
  bool writes = ts_world_rank(e->world) == 0;
  ts_status status = writes ? ts_make_directory(directory, err) : TS_OK;
  status = writes && status == TS_OK ? begin_model_file(x, path, err) : status;
  status = ts_world_agree(e->world, status, err);
  if (status == TS_OK) {
    ts_executor_complete(e->executor);
    write_parts(x);
    status = x->status != TS_OK ? ts_error_add(err, "%s", x->why.text) : TS_OK;
  }
  ts_status ended = ts_safetensors_end(&x->writer, status == TS_OK, err);
  status = status == TS_OK ? ended : status;
  status = writes && status == TS_OK ? write_beside(e, directory, x->dtype, err) : status;
  ts_error_clear(&x->why);
  return ts_world_agree(e->world, status, err);
}

/* ---- all of it ---- */

static ts_status check_model_file(const char *directory, const char *file, ts_error *err) {
  bool named = directory[0] != 0 && file[0] != 0 && file[0] != '.' && strchr(file, '/') == NULL &&
               ts_ends_in(file, ".safetensors");
  return named ? TS_OK
               : ts_error_add(err,
                              "ts_save_16bit_model: \"%s\" in \"%s\": accepted are a directory and the name of a file "
                              "in it that ends in .safetensors, the format that is written",
                              file, directory);
}

static bool is_gathered(const ts_engine *e) {
  const ts_deck_zero *zero = &e->deck->zero_optimization;
  bool gathered = zero->stage < 3 || zero->stage3_gather_16bit_weights_on_model_save;
  if (!gathered) {
    ts_log(
        TS_LOG_WARNING,
        "the model is not saved: at ZeRO stage 3 its weights are gathered for that only where "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save is true; zero_to_fp32 makes it of a checkpoint");
  }
  return gathered;
}

ts_status ts_save_16bit_model(ts_engine *e, const char *directory, const char *file, bool exclude_frozen, bool *saved,
                              ts_error *err) {
  const char *name = file != NULL ? file : "model.safetensors";
  ts_status status = ts_engine_check_no_feed(e, "ts_save_16bit_model", err);
  status = status == TS_OK ? ts_world_agree(e->world, check_model_file(directory, name, err), err) : status;
  bool writes = status == TS_OK && is_gathered(e);
  if (writes) {
    export x = {.engine = e, .dtype = ts_deck_dtype(e->deck), .exclude_frozen = exclude_frozen};
    char *path = ts_format("%s/%s", directory, name), size[32];
    double begun = ts_seconds();
    status = write_model(&x, directory, path, err);
    if (status == TS_OK) {
      ts_log(TS_LOG_INFO, "the model is in %s: %s, %s in %.2f s", path, ts_dtype_name(x.dtype),
             ts_human_bytes(x.bytes, size), ts_seconds() - begun);
    }
    ts_free(path);
  }
  if (saved != NULL) {
    *saved = writes && status == TS_OK;
  }
  return status;
}
