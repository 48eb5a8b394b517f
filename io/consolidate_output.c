#include "io/consolidate_output.h"

#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "family/stack.h"
#include "io/hdf5.h"
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define EARLY ((int64_t) 16 << 20) /* bytes that start their way to the disk together */

/* ---- what goes where ---- */

static bool is_left_out(const ts_checkpoint *c, const ts_saved_parameter *p) {
  return !ts_checkpoint_part(c, p)->trainable && !ts_family_is_router_bias(p->name);
}

ts_output *ts_output_create(const ts_consolidate_options *o) {
  const ts_checkpoint *c = o->checkpoint;
  ts_output *out = ts_calloc(1, sizeof *out);
  *out = (ts_output){.options = o, .current = -1, .n_files = 1};
  out->tensor = ts_calloc((size_t) c->n_parameters, sizeof *out->tensor);
  int64_t in_file = 0;
  for (int i = 0; i < c->n_parameters; ++i) {
    if (o->exclude_frozen && is_left_out(c, &c->parameter[i])) {
      continue;
    }
    ts_dtype dtype = ts_family_is_router_bias(c->parameter[i].name) ? TS_F32 : o->dtype;
    int64_t bytes = c->parameter[i].count * (int64_t) ts_dtype_size(dtype);
    if (o->format == TS_CONSOLIDATE_SAFETENSORS && in_file > 0 && in_file + bytes > o->most_bytes) {
      ++out->n_files;
      in_file = 0;
    }
    out->tensor[out->n_tensors++] =
        (ts_output_tensor){.parameter = i, .file = out->n_files - 1, .dtype = dtype, .bytes = bytes};
    in_file += bytes;
    out->bytes += bytes;
  }
  return out;
}

void ts_output_destroy(ts_output **output) {
  ts_output *o = *output;
  if (o->file != NULL) {
    fclose(o->file);
  }
  if (o->hdf5 > 0) {
    ts_hdf5_lock();
    if (o->dataset > 0) {
      H5Dclose((hid_t) o->dataset);
    }
    ts_hdf5_unlock();
    ts_error unheard = {0};
    ts_hdf5_finish((hid_t) o->hdf5, o->options->output, &unheard);
    ts_error_clear(&unheard);
  }
  ts_free(o->tensor);
  ts_free(o);
  *output = NULL;
}

/* ---- safetensors ---- */

static char *file_name(const ts_output *o, int file) {
  return o->n_files == 1 ? ts_strdup("model.safetensors")
                         : ts_format("model-%05d-of-%05d.safetensors", file + 1, o->n_files);
}

static ts_status output_failed(const ts_output *o, const char *name, ts_error *err) {
  return ts_error_add(err, "%s/%s: cannot be written: %s", o->options->output, name, strerror(errno));
}

static ts_status end_file(ts_output *o, ts_error *err) {
  if (o->file == NULL) {
    return TS_OK;
  }
  char *name = file_name(o, o->current);
  bool ok = fflush(o->file) == 0 && fsync(fileno(o->file)) == 0;
  ts_status status = ok ? TS_OK : output_failed(o, name, err);
  fclose(o->file); /* nothing is left to fail after fsync */
  o->file = NULL;
  ts_free(name);
  return status;
}

static void add_header(const ts_output *o, int file, ts_text *to) {
  const ts_checkpoint *c = o->options->checkpoint;
  ts_safetensor *tensor = ts_calloc((size_t) o->n_tensors, sizeof *tensor);
  int n = 0;
  for (int i = 0; i < o->n_tensors; ++i) {
    const ts_saved_parameter *p = &c->parameter[o->tensor[i].parameter];
    if (o->tensor[i].file == file) {
      tensor[n] = (ts_safetensor){.name = p->name, .dtype = o->tensor[i].dtype, .n_dims = p->n_dims};
      memcpy(tensor[n++].shape, p->shape, (size_t) p->n_dims * sizeof *p->shape);
    }
  }
  ts_safetensors_header(tensor, n, to);
  ts_free(tensor);
}

static ts_status begin_file(ts_output *o, int file, ts_error *err) {
  ts_status status = end_file(o, err);
  if (status != TS_OK) {
    return status;
  }
  char *name = file_name(o, file), *path = ts_format("%s/%s", o->options->output, name);
  ts_text header = {0};
  add_header(o, file, &header);
  o->current = file;
  o->in_file = o->started = 0;
  o->file = fopen(path, "wb");
  bool ok = o->file != NULL;
  if (ok) {
    setvbuf(o->file, NULL, _IONBF, 0); /* blocks are large already */
    ok = fwrite(header.text, 1, header.length, o->file) == header.length;
  }
  status = ok ? TS_OK : output_failed(o, name, err);
  ts_text_free(&header);
  ts_free(path);
  ts_free(name);
  return status;
}

static ts_status write_safetensors(ts_output *o, int tensor, size_t bytes, const void *data, ts_error *err) {
  ts_status status = o->current == o->tensor[tensor].file ? TS_OK : begin_file(o, o->tensor[tensor].file, err);
  if (status == TS_OK && fwrite(data, 1, bytes, o->file) != bytes) {
    char *name = file_name(o, o->current);
    status = output_failed(o, name, err);
    ts_free(name);
  }
  o->in_file += (int64_t) bytes;
#ifdef SYNC_FILE_RANGE_WRITE
  if (status == TS_OK && o->in_file - o->started >= EARLY) { /* only to be early: fsync decides */
    sync_file_range(fileno(o->file), o->started, o->in_file - o->started, SYNC_FILE_RANGE_WRITE);
    o->started = o->in_file;
  }
#endif
  return status;
}

static void list_tensor(const char *name, const char *file, ts_text *to) {
  ts_text_add(to, "%s\n    ", to->text[to->length - 1] == '{' ? "" : ",");
  ts_text_add_json(to, name);
  ts_text_add(to, ": \"%s\"", file);
}

/* A stack by its experts. */
static void list_parameter(const ts_saved_parameter *p, const char *file, ts_text *to) {
  bool stacked = ts_stack_is(p->name, p->n_dims);
  for (int64_t e = 0; e < (stacked ? p->shape[0] : 1); ++e) {
    char *name = stacked ? ts_stack_name(p->name, e) : ts_strdup(p->name);
    list_tensor(name, file, to);
    ts_free(name);
  }
}

static ts_status write_list(const ts_output *o, ts_error *err) {
  ts_text text = {0};
  ts_text_add(&text, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {", (long long) o->bytes);
  for (int i = 0; i < o->n_tensors; ++i) {
    char *name = file_name(o, o->tensor[i].file);
    list_parameter(&o->options->checkpoint->parameter[o->tensor[i].parameter], name, &text);
    ts_free(name);
  }
  ts_text_add(&text, "\n  }\n}\n");
  char *path = ts_format("%s/model.safetensors.index.json", o->options->output);
  ts_status status = ts_write_file(path, text.text, text.length, err);
  ts_free(path);
  ts_text_free(&text);
  return status;
}

/* ---- HDF5 ---- */

static bool create_tensor_dataset(ts_output *o, int tensor) {
  const ts_saved_parameter *p = &o->options->checkpoint->parameter[o->tensor[tensor].parameter];
  hsize_t dims[TS_CHECKPOINT_LARGEST_RANK];
  for (int d = 0; d < p->n_dims; ++d) {
    dims[d] = (hsize_t) p->shape[d];
  }
  hid_t space = H5Screate_simple(p->n_dims, dims, NULL), type = ts_hdf5_type(o->tensor[tensor].dtype);
  hid_t create = ts_hdf5_dataset_properties();
  H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
  o->dataset = H5Dcreate2((hid_t) o->hdf5, p->name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
  H5Pclose(create);
  H5Tclose(type);
  H5Sclose(space);
  return o->dataset >= 0;
}

static bool close_tensor_dataset(ts_output *o) {
  bool ok = o->dataset <= 0 || H5Dclose((hid_t) o->dataset) >= 0;
  o->dataset = 0;
  return ok;
}

/* Elements [first, first + count) are a tail of a row, whole rows and a head of a row (and so on for more dimensions):
 * boxes in the order of their elements. */
static bool select_range(hid_t space, const ts_saved_parameter *p, int64_t first, int64_t count) {
  H5Sselect_none(space);
  while (count > 0) {
    hsize_t start[TS_CHECKPOINT_LARGEST_RANK] = {0}, size[TS_CHECKPOINT_LARGEST_RANK];
    int64_t block = 1, rest = first;
    int d = p->n_dims - 1;
    for (; d > 0 && rest % p->shape[d] == 0 && block * p->shape[d] <= count; --d) { /* whole rows as far as they go */
      size[d] = (hsize_t) p->shape[d];
      block *= p->shape[d];
      rest /= p->shape[d];
    }
    int64_t at = rest % p->shape[d], n = p->shape[d] - at < count / block ? p->shape[d] - at : count / block;
    start[d] = (hsize_t) at;
    size[d] = (hsize_t) n;
    rest /= p->shape[d];
    for (int k = d - 1; k >= 0; --k) {
      start[k] = (hsize_t) (rest % p->shape[k]);
      size[k] = 1;
      rest /= p->shape[k];
    }
    if (H5Sselect_hyperslab(space, H5S_SELECT_OR, start, NULL, size, NULL) < 0) {
      return false;
    }
    first += n * block;
    count -= n * block;
  }
  return true;
}

static bool write_range(ts_output *o, int tensor, int64_t first, int64_t count, const void *data) {
  const ts_saved_parameter *p = &o->options->checkpoint->parameter[o->tensor[tensor].parameter];
  hsize_t n = (hsize_t) count;
  hid_t to = H5Dget_space((hid_t) o->dataset), from = H5Screate_simple(1, &n, NULL);
  hid_t type = ts_hdf5_type(o->tensor[tensor].dtype);
  bool ok = select_range(to, p, first, count) && H5Dwrite((hid_t) o->dataset, type, from, to, H5P_DEFAULT, data) >= 0;
  H5Tclose(type);
  H5Sclose(from);
  H5Sclose(to);
  return ok;
}

static ts_status write_hdf5(ts_output *o, int tensor, int64_t first, int64_t count, const void *data, ts_error *err) {
  bool ok = true;
  ts_hdf5_lock();
  if (o->hdf5 == 0) {
    o->hdf5 = ts_hdf5_create(o->options->output, err);
  }
  if (o->hdf5 > 0 && o->current != tensor) {
    ok = close_tensor_dataset(o) && create_tensor_dataset(o, tensor);
    o->current = tensor;
  }
  ok = o->hdf5 > 0 && ok && write_range(o, tensor, first, count, data);
  ts_hdf5_unlock();
  if (o->hdf5 < 0) {
    o->hdf5 = 0;
    return TS_BAD_INPUT;
  }
  return ok ? TS_OK : ts_error_add(err, "%s: HDF5 could not write it", o->options->output);
}

/* A number of the whole file. */
static bool add_attribute(hid_t file, const char *name, int64_t value) {
  hid_t space = H5Screate(H5S_SCALAR);
  hid_t attribute = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
  bool ok = attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0;
  ok = (attribute < 0 || H5Aclose(attribute) >= 0) && ok;
  H5Sclose(space);
  return ok;
}

static ts_status end_hdf5(ts_output *o, ts_error *err) {
  ts_hdf5_lock();
  bool ok = close_tensor_dataset(o);
  ok = add_attribute((hid_t) o->hdf5, "step", o->options->checkpoint->step) && ok;
  ok = add_attribute((hid_t) o->hdf5, "version", TS_CONSOLIDATED_VERSION) && ok;
  ts_hdf5_unlock();
  ts_status status = ts_hdf5_finish((hid_t) o->hdf5, o->options->output, err);
  o->hdf5 = 0;
  return status != TS_OK || ok ? status : ts_error_add(err, "%s: HDF5 could not write it", o->options->output);
}

/* ---- either ---- */

ts_status ts_output_write(ts_output *o, int tensor, int64_t first, int64_t count, const void *data, ts_error *err) {
  return o->options->format == TS_CONSOLIDATE_HDF5
             ? write_hdf5(o, tensor, first, count, data, err)
             : write_safetensors(o, tensor, (size_t) count * ts_dtype_size(o->tensor[tensor].dtype), data, err);
}

ts_status ts_output_end(ts_output *o, ts_error *err) {
  if (o->options->format == TS_CONSOLIDATE_HDF5) {
    return end_hdf5(o, err);
  }
  ts_status status = end_file(o, err);
  return status == TS_OK && o->n_files > 1 ? write_list(o, err) : status;
}
