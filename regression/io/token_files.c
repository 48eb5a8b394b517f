#include "regression/io/token_files.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "regression/tap.h"

#include <string.h>

char *token_file_bytes(const char *name, const void *bytes, size_t n) {
  char *path = ts_format("%s/%s", tap_directory(), name);
  TS_CHECK(ts_write_file(path, bytes, n, NULL) == TS_OK, "%s", path);
  return path;
}

char *token_file_hdf5(const char *name, const token_dataset *sets, int n) {
  char *path = ts_format("%s/%s", tap_directory(), name);
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), groups = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(groups, 1);
  for (int i = 0; i < n; ++i) {
    hid_t space = H5Screate_simple(1, &sets[i].n, NULL);
    hid_t data = H5Dcreate2(file, sets[i].name, sets[i].type, space, groups, H5P_DEFAULT, H5P_DEFAULT);
    TS_CHECK(sets[i].n == 0 || H5Dwrite(data, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, sets[i].values) >= 0,
             "%s", path);
    H5Dclose(data);
    H5Sclose(space);
  }
  H5Pclose(groups);
  H5Fclose(file);
  return path;
}

static uint8_t *put_number(uint8_t *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    *to++ = (uint8_t) (value >> 8 * i);
  }
  return to;
}

static uint8_t *put_header(uint8_t *to, const megatron_pair *p) {
  memcpy(to, p->magic != NULL ? p->magic : "MMIDIDX\0\0", 9);
  to = put_number(to + 9, p->version, 8);
  to = put_number(to, (uint64_t) p->code, 1);
  to = put_number(to, p->says_sequences != 0 ? p->says_sequences : (uint64_t) p->n_sequences, 8);
  return put_number(to, p->says_entries != 0 ? p->says_entries : (uint64_t) p->n_entries, 8);
}

char *token_file_megatron(const char *prefix, const megatron_pair *p) {
  uint8_t bytes[34 + 20 * MEGATRON_MOST + 64] = {0}, *to = put_header(bytes, p);
  for (int i = 0; i < p->n_sequences; ++i) {
    to = put_number(to, (uint32_t) p->size[i], 4);
  }
  for (int i = 0; i < p->n_sequences; ++i) {
    to = put_number(to, (uint64_t) p->pointer[i], 8);
  }
  for (int i = 0; i < p->n_entries; ++i) {
    to = put_number(to, (uint64_t) p->entry[i], 8);
  }
  char *name = ts_format("%s.idx", prefix);
  ts_free(token_file_bytes(name, bytes, (size_t) (to - bytes - p->cut)));
  ts_free(name);
  to = bytes;
  for (int i = 0; i < p->n_values; ++i) {
    to = put_number(to, (uint64_t) p->value[i], p->width);
  }
  name = ts_format("%s.bin", prefix);
  ts_free(token_file_bytes(name, bytes, (size_t) (to - bytes)));
  ts_free(name);
  return ts_format("%s/%s", tap_directory(), prefix);
}
