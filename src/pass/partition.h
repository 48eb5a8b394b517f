/** \file
 * Cutting a row of items into consecutive parts, as even as can be.  Part k is items cuts[k] ... cuts[k + 1] - 1.  The
 * first two cut as DeepSpeed's of the same name (deepspeed/runtime/utils.py), ties included.  None is collective.
 */
#ifndef TS_PASS_PARTITION_H
#define TS_PASS_PARTITION_H

/** As many items in each part, one more in the first of them where that does not come out.
 * \param [out] cuts  [parts + 1]; with fewer items than parts the last parts are empty. Not collective. */
void ts_partition_uniform(int n, int parts, int *cuts);

/** The least difference between the largest and the smallest sum of a part: not the least maximum.  Of cuts that are as
 * good the last part is the shortest, then the one before it.  Time n^2 parts.
 * \param [in]  weight  Of each item, at least 0.
 * \param [out] cuts    [parts + 1]; with no more items than parts as ts_partition_uniform. Not collective. */
void ts_partition_balanced(int n, const double *weight, int parts, int *cuts);

/** The least maximum of a part's sum, and no part is empty; of cuts that are as good the most even (the least sum of
 * squares), of these one whose first parts are the longest.  Time n^2 parts.
 * \param [in]  weight  Of each item, at least 0; n >= parts.
 * \param [out] cuts    [parts + 1] Not collective. */
void ts_partition_least_most(int n, const double *weight, int parts, int *cuts);

/** What a cut costs: less is better. */
typedef double ts_partition_cost(void *user, const int *cuts);

/** Give items from any part to any other, through those between, as long as that lowers the cost; no part is emptied.
 * \param [in,out] cuts  [parts + 1] Without an empty part. \return the cost reached. Not collective. */
double ts_partition_improve(int parts, int *cuts, ts_partition_cost *cost, void *user);

#endif
