#include "base/memory.h"
#include "base/text.h"
#include "io/hdf5.h"
#include "io/tokens_format.h"

#include <string.h>

/* Tokens of one window: values arrive as int64 so that one outside int32 is reported as it is.  512 KiB. */
enum { WINDOW = 65536 };

static void close_dataset(int64_t *data) {
  if (*data > 0) {
    ts_hdf5_lock();
    H5Dclose((hid_t) *data);
    ts_hdf5_unlock();
    *data = 0;
  }
}

#define DOCUMENTS "documents"
#define MASK "loss_mask"

/* The length of a dataset that is one-dimensional and of integers. */
static ts_status check_dataset(const ts_tokens *tokens, const char *name, hid_t data, int64_t *count, ts_error *err) {
  hid_t type = H5Dget_type(data), space = H5Dget_space(data);
  hsize_t length = 0, limit = 0;
  H5T_class_t kind = type >= 0 ? H5Tget_class(type) : H5T_NO_CLASS;
  bool integers = kind == H5T_INTEGER || kind == H5T_ENUM; /* h5py's truth values are an enumeration */
  bool line = space >= 0 && H5Sget_simple_extent_type(space) == H5S_SIMPLE && H5Sget_simple_extent_ndims(space) == 1 &&
              H5Sget_simple_extent_dims(space, &length, &limit) == 1;
  H5Tclose(type);
  H5Sclose(space);
  if (!integers || !line || length > INT64_MAX) {
    return ts_error_add(err, "%s: dataset \"%s\" is not a one-dimensional dataset of integers", tokens->path, name);
  }
  *count = (int64_t) length;
  return TS_OK;
}

/* \param [out] count  -1 where there is no such dataset beside that of the tokens. */
static ts_status open_beside(const ts_tokens *tokens, const char *name, int64_t *data, int64_t *count, ts_error *err) {
  const char *slash = strrchr(tokens->dataset, '/');
  char *path = ts_format("%.*s%s", slash != NULL ? (int) (slash - tokens->dataset) + 1 : 0, tokens->dataset, name);
  hid_t file = H5Iget_file_id((hid_t) tokens->data), found = -1;
  bool there = file >= 0 && strcmp(path, tokens->dataset) != 0 && H5Lexists(file, path, H5P_DEFAULT) > 0;
  ts_status status = TS_OK;
  *count = -1;
  if (there && (found = H5Dopen2(file, path, H5P_DEFAULT)) < 0) {
    status = ts_error_add(err, "%s: \"%s\" is not a dataset", tokens->path, path);
  } else if (there) {
    *data = found;
    status = check_dataset(tokens, path, found, count, err);
  }
  H5Fclose(file);
  ts_free(path);
  return status;
}

static ts_status open_mask(ts_tokens *tokens, ts_error *err) {
  int64_t count;
  ts_status status = open_beside(tokens, MASK, &tokens->mask, &count, err);
  if (status == TS_OK && count >= 0 && count != tokens->count) {
    status = ts_error_add(err, "%s: dataset \"" MASK "\" has %lld entries for %lld tokens; it needs one a token",
                          tokens->path, (long long) count, (long long) tokens->count);
  }
  tokens->masked = count >= 0;
  return status;
}

static ts_status open_token_dataset(ts_tokens *tokens, ts_error *err) {
  hid_t file = ts_hdf5_open(tokens->path);
  if (file < 0) {
    return ts_error_add(err, "%s: cannot be opened as an HDF5 file", tokens->path);
  }
  hid_t data = H5Dopen2(file, tokens->dataset, H5P_DEFAULT);
  H5Fclose(file); /* stays open inside HDF5 as long as the dataset is */
  if (data < 0) {
    return ts_error_add(err, "%s: no dataset \"%s\"", tokens->path, tokens->dataset);
  }
  tokens->data = data;
  ts_status status = check_dataset(tokens, tokens->dataset, data, &tokens->count, err);
  return status == TS_OK ? open_mask(tokens, err) : status;
}

static ts_status open_hdf5(ts_tokens *tokens, ts_error *err) {
  ts_mapping probe; /* says why the file cannot be read, which HDF5 does not */
  if (ts_mapping_open(tokens->path, &probe, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_mapping_close(&probe);
  ts_status status;
  ts_hdf5_lock();
  status = open_token_dataset(tokens, err);
  ts_hdf5_unlock();
  return status;
}

static ts_status find_hdf5_documents(ts_tokens *tokens, int64_t *n, ts_error *err) {
  ts_status status;
  close_dataset(&tokens->documents);
  ts_hdf5_lock();
  status = open_beside(tokens, DOCUMENTS, &tokens->documents, n, err);
  ts_hdf5_unlock();
  return status;
}

static herr_t read_window(hid_t data, int64_t first, int64_t count, int64_t *window) {
  hsize_t start = (hsize_t) first, length = (hsize_t) count;
  herr_t status;
  ts_hdf5_lock();
  hid_t from = H5Dget_space(data), to = H5Screate_simple(1, &length, NULL);
  status = H5Sselect_hyperslab(from, H5S_SELECT_SET, &start, NULL, &length, NULL);
  status = status < 0 ? status : H5Dread(data, H5T_NATIVE_INT64, to, from, H5P_DEFAULT, window);
  H5Sclose(from);
  H5Sclose(to);
  ts_hdf5_unlock();
  return status;
}

/* Checks a window that begins at `first` and puts it behind `done` elements of what is wanted. */
typedef ts_status take_window(const ts_tokens *tokens, int64_t first, int64_t count, const int64_t *window, void *out,
                              int64_t done, ts_error *err);

static ts_status take_tokens(const ts_tokens *tokens, int64_t first, int64_t count, const int64_t *window, void *out,
                             int64_t done, ts_error *err) {
  int32_t *to = (int32_t *) out + done;
  for (int64_t i = 0; i < count; ++i) {
    if (window[i] < 0 || window[i] >= tokens->vocab_size) {
      return ts_tokens_outside(tokens, first + i, window[i], err);
    }
    to[i] = (int32_t) window[i];
  }
  return TS_OK;
}

static ts_status fail_read(const ts_tokens *tokens, const char *name, int64_t offset, ts_error *err) {
  return ts_error_add(err, "%s: dataset \"%s\" cannot be read at offset %lld", tokens->path, name, (long long) offset);
}

/* Window by window, from the dataset `data` called `name`. */
static ts_status read_windows(const ts_tokens *tokens, int64_t data, const char *name, int64_t first, int64_t count,
                              take_window *take, void *out, ts_error *err) {
  int64_t size = count < WINDOW ? count : WINDOW;
  int64_t *window = ts_malloc((size_t) size * sizeof *window);
  ts_status status = TS_OK;
  for (int64_t done = 0; status == TS_OK && done < count; done += size) {
    int64_t n = count - done < size ? count - done : size;
    status = read_window((hid_t) data, first + done, n, window) < 0
                 ? fail_read(tokens, name, first + done, err)
                 : take(tokens, first + done, n, window, out, done, err);
  }
  ts_free(window);
  return status;
}

static ts_status read_hdf5(ts_tokens *tokens, int64_t first, int64_t count, int32_t *out, ts_error *err) {
  return read_windows(tokens, tokens->data, tokens->dataset, first, count, take_tokens, out, err);
}

static ts_status read_hdf5_documents(ts_tokens *tokens, int64_t first, int64_t count, int64_t *out, ts_error *err) {
  return read_window((hid_t) tokens->documents, first, count, out) < 0 ? fail_read(tokens, DOCUMENTS, first, err)
                                                                       : TS_OK;
}

static ts_status take_mask(const ts_tokens *tokens, int64_t first, int64_t count, const int64_t *window, void *out,
                           int64_t done, ts_error *err) {
  uint8_t *to = (uint8_t *) out + done;
  for (int64_t i = 0; i < count; ++i) {
    if (window[i] != 0 && window[i] != 1) {
      return ts_error_add(err, "%s: dataset \"" MASK "\" has %lld at offset %lld; accepted: 0, 1", tokens->path,
                          (long long) window[i], (long long) (first + i));
    }
    to[i] = (uint8_t) window[i];
  }
  return TS_OK;
}

static ts_status read_hdf5_mask(ts_tokens *tokens, int64_t first, int64_t count, uint8_t *out, ts_error *err) {
  return read_windows(tokens, tokens->mask, MASK, first, count, take_mask, out, err);
}

static void close_hdf5(ts_tokens *tokens) {
  close_dataset(&tokens->data);
  close_dataset(&tokens->documents);
  close_dataset(&tokens->mask);
}

const ts_tokens_format ts_tokens_hdf5 = {.name = "hdf5",
                                         .magic = {"\x89HDF\r\n\x1a\n"},
                                         .magic_bytes = 8,
                                         .extensions = {".h5", ".hdf5"},
                                         .open = open_hdf5,
                                         .read = read_hdf5,
                                         .close = close_hdf5,
                                         .find_documents = find_hdf5_documents,
                                         .read_documents = read_hdf5_documents,
                                         .read_mask = read_hdf5_mask};
