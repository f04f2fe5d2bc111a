// Fewer points for the eye, the same outline: of each bucket the least and the greatest are kept, and a gap stays a gap.

const SMOOTH_OVER = 400;

// The first index whose x is not below `value`; xs ascend.
export function lowerBound(xs, value) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Indices to draw of ys[from..to), at most about `limit` of them, ascending.
export function thin(ys, from, to, limit = 2000) {
  const size = Math.ceil((to - from) / (limit / 3));
  const kept = [];
  if (to - from <= limit) {
    for (let index = from; index < to; index += 1) kept.push(index);
    return kept;
  }
  for (let start = from; start < to; start += size) {
    const marks = bucketMarks(ys, start, Math.min(start + size, to));
    for (const index of marks) kept.push(index);
  }
  return kept;
}

function bucketMarks(ys, start, end) {
  let least = -1;
  let greatest = -1;
  let gap = -1;
  for (let index = start; index < end; index += 1) {
    const y = ys[index];
    if (!Number.isFinite(y)) {
      if (gap < 0) gap = index;
      continue;
    }
    if (least < 0 || y < ys[least]) least = index;
    if (greatest < 0 || y > ys[greatest]) greatest = index;
  }
  return [...new Set([least, greatest, gap].filter((index) => index >= 0))].sort((a, b) => a - b);
}

// Exponential mean without the pull of its start (as Adam corrects its moments). A window counts by its samples: an epoch's
// end cuts some of them short; and where there are more windows than the eye can tell apart, it takes more of them. What
// is not finite stays a gap.
export function smooth(ys, samples, decay) {
  if (decay === 0) return ys;
  const usual = (median(samples) || 1) * Math.max(1, ys.length / SMOOTH_OVER);
  const out = new Array(ys.length);
  let mean = 0;
  let total = 0;
  for (let index = 0; index < ys.length; index += 1) {
    const y = ys[index];
    if (!Number.isFinite(y)) {
      out[index] = y;
      continue;
    }
    const kept = decay ** (samples[index] / usual);
    mean = kept * mean + (1 - kept) * y;
    total = kept * total + (1 - kept);
    out[index] = mean / total;
  }
  return out;
}

function median(values) {
  return Float64Array.from(values).sort()[values.length >> 1];
}
